// SPDX-License-Identifier: MIT
// What the subcommands of the program share.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tessera/harness/sizes.hpp"
#include "tessera/mesh/communicator.hpp"
#include "tessera/mesh/device_mesh.hpp"

namespace tessera::tools {

struct Session {
  Communicator world;
  std::string command;  // the command line, for reports
};

// A subcommand declares its options and returns what to run: an exit code, equal on all ranks.
using Run = std::function<int(const Session&)>;
Run add_parity(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_scaling(CLI::App& bench);
Run add_info(CLI::App& app);
Run add_contracts(CLI::App& app);
Run add_report(CLI::App& app);

CLI::Validator whole_number();  // from 1 on

// --size, --tokens, --channels, --batch, --msa.
void add_size_options(CLI::App& app, harness::SizeOptions& sizes);
void add_group_option(CLI::App& app);
void add_chunk_option(CLI::App& app);

// --device, --oversubscribe-gpus. On a GPU without an index each rank takes one of its own.
struct DeviceOptions {
  std::string name = "cpu";
  bool oversubscribe = false;
};
void add_device_options(CLI::App& app, DeviceOptions& device);
// For the parsed subcommands, before MPI is initialised.
void choose_device_before_mpi(const CLI::App& app);

// --mesh, or the squarest grid of all ranks. InitError if it does not fit the ranks.
DeviceMesh make_mesh(const Session& session, const std::string& option,
                     const DeviceOptions& device);
// --tf32. UsageError on a device that cuts nothing: the wider bounds would be a gift.
void use_tf32(bool tf32, const DeviceMesh& mesh);
// Prints on rank 0 only.
void print(const Session& session, const std::string& text);
// Writes a file on rank 0; FileError on every rank, naming the option, if that fails.
void write_file(const DeviceMesh& mesh, const std::string& path, const std::string& text,
                const char* option = "--json");

}  // namespace tessera::tools
