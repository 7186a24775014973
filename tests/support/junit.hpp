// SPDX-License-Identifier: MIT
// The results of one test program as a JUnit file for CI systems.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tessera::test {

enum class Outcome { passed, failed, skipped, unfinished };

struct CaseResult {
  std::string name;
  Outcome outcome = Outcome::unfinished;
  std::string message;  // in a line: which ranks failed, why it was skipped
  std::string text;     // failed assertions by rank
  double seconds = 0;
};

// Every rank holds the same report, so that any of them can write it: rank 0, or the rank that ends
// the job.
class Report {
 public:
  Report() = default;
  Report(std::string file, const std::string& program, int ranks);  // empty file: none is written

  void start(const std::string& name);
  void finish(Outcome outcome, std::string message = {}, std::string text = {});

  // The file is complete after each call and is replaced as a whole. What has started and not
  // finished counts as an error, so that a job that was killed leaves a true report.
  void write() const;

 private:
  std::string file_;
  std::string suite_;  // program.4ranks
  std::vector<CaseResult> cases_;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace tessera::test
