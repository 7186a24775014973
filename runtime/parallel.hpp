// SPDX-License-Identifier: MIT
// Threads of one rank. A body written over lanes allocates its workspace once and walks its range
// in chunks that stay in cache; the same body runs on a GPU as one lane with large chunks.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/runtime/device.hpp"

namespace tessera {

// Threads this rank may use: what set_thread_count() or TESSERA_THREADS chose, else the default:
// the size of the affinity mask, which Environment divides among the ranks of the node that share
// it.
int thread_count();
void set_thread_count(int threads);
int set_default_thread_count(int threads);  // returns the one before
// Ends the threads that sleep between operations; the next operation makes them anew.
void end_threads();

// Cuts [0, count) into at most lane_count(device) contiguous ranges, multiples of `grain` but for
// the last, and runs body(begin, end, lane) once for each non-empty one, concurrently on a CPU. The
// cut depends on count, grain and the thread count only. Scope and purpose of the ledger are those
// of the caller. An exception of a body is rethrown here, after all have ended.
int lane_count(Device device);
void run_lanes(Device device, std::int64_t count, std::int64_t grain,
               const std::function<void(std::int64_t begin, std::int64_t end, int lane)>& body);
bool inside_lane();  // operations called from a lane do not start threads of their own

// Rows that a chunked block function handles at a time, if each needs `bytes_per_row` of workspace:
// what fits half of a core's L2 on a CPU (a multiple of 16, at least 16), a large share on a GPU.
std::int64_t chunk_rows(Device device, std::int64_t bytes_per_row);
void set_chunk_bytes(std::int64_t bytes);  // instead of either, on every device; 0: as above

}  // namespace tessera
