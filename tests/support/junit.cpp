// SPDX-License-Identifier: MIT
#include "support/junit.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace tessera::test {
namespace {

// Characters that XML does not have in it become question marks, and so do bytes beyond ASCII: they
// need not be whole characters.
std::string escaped(const std::string& text) {
  std::string xml;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&')
      xml += "&amp;";
    else if (c == '<')
      xml += "&lt;";
    else if (c == '>')
      xml += "&gt;";
    else if (c == '"')
      xml += "&quot;";
    else
      xml += c == '\n' || c == '\t' || (byte >= 0x20 && byte < 0x7f) ? c : '?';
  }
  return xml;
}

const char* element(Outcome outcome) {
  switch (outcome) {
    case Outcome::failed:
      return "failure";
    case Outcome::skipped:
      return "skipped";
    case Outcome::unfinished:
      return "error";
    case Outcome::passed:
      break;
  }
  return nullptr;
}

void write_case(std::ostream& out, const std::string& suite, const CaseResult& result) {
  out << "    <testcase classname=\"" << escaped(suite) << "\" name=\"" << escaped(result.name)
      << "\" time=\"" << result.seconds << '"';
  const char* tag = element(result.outcome);
  if (tag == nullptr) {
    out << "/>\n";
    return;
  }
  const std::string message =
      result.outcome == Outcome::unfinished ? "the test case did not end" : result.message;
  out << ">\n      <" << tag << " message=\"" << escaped(message) << "\">" << escaped(result.text)
      << "</" << tag << ">\n    </testcase>\n";
}

}  // namespace

Report::Report(std::string file, const std::string& program, int ranks)
    : file_(std::move(file)),
      suite_(std::filesystem::path(program).filename().string() + '.' + std::to_string(ranks) +
             "ranks") {}

void Report::start(const std::string& name) {
  cases_.emplace_back().name = name;
  started_ = std::chrono::steady_clock::now();
}

void Report::finish(Outcome outcome, std::string message, std::string text) {
  CaseResult& result = cases_.back();
  result.outcome = outcome;
  result.message = std::move(message);
  result.text = std::move(text);
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void Report::write() const {
  if (file_.empty()) return;
  const auto count = [&](Outcome outcome) {
    return std::count_if(cases_.begin(), cases_.end(),
                         [&](const CaseResult& result) { return result.outcome == outcome; });
  };
  double seconds = 0;
  for (const CaseResult& result : cases_) seconds += result.seconds;
  const std::filesystem::path file(file_);
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
  const std::string fresh = file_ + ".part";
  std::ofstream out(fresh);
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\""
      << escaped(suite_) << "\" tests=\"" << cases_.size() << "\" failures=\""
      << count(Outcome::failed) << "\" errors=\"" << count(Outcome::unfinished) << "\" skipped=\""
      << count(Outcome::skipped) << "\" time=\"" << seconds << "\">\n";
  for (const CaseResult& result : cases_) write_case(out, suite_, result);
  out << "  </testsuite>\n</testsuites>\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + fresh);
  std::filesystem::rename(fresh, file);
}

}  // namespace tessera::test
