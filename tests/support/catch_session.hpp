// SPDX-License-Identifier: MIT
// What main() needs of Catch2, from 2.13 or 3. For main.cpp only: with 2.13 it holds all of Catch2.
#pragma once

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_assertion_result.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#define TESSERA_CATCH 3
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#define TESSERA_CATCH 2
#endif

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::test {

#if TESSERA_CATCH == 3

using Listener = Catch::EventListenerBase;
using AssertionEnd = void;

inline void prepare(Catch::ConfigData& config) {
  config.defaultColourMode = Catch::ColourMode::None;
}

inline bool only_lists(const Catch::ConfigData& config) {
  return config.showHelp || config.libIdentify || config.listTests || config.listTags ||
         config.listReporters || config.listListeners;
}

inline void list_names_only(Catch::ConfigData& config) {
  config.listTests = true;
  config.verbosity = Catch::Verbosity::Quiet;
}

// Takes `-r junit -o FILE` or `-r junit::out=FILE` away from Catch2 and returns FILE; empty: not
// asked for, "-": without a file.
inline std::string take_junit(Catch::ConfigData& config) {
  std::string file;
  std::erase_if(config.reporterSpecifications, [&](const Catch::ReporterSpec& reporter) {
    if (reporter.name() != "junit") return false;
    file = reporter.outputFile() ? *reporter.outputFile() : config.defaultOutputFilename;
    if (file.empty()) file = "-";
    return true;
  });
  if (!file.empty()) config.defaultOutputFilename.clear();
  return file;
}

#else

using Listener = Catch::TestEventListenerBase;
using AssertionEnd = bool;

inline void prepare(Catch::ConfigData& config) {
  config.useColour = Catch::UseColour::No;
  config.warnings = Catch::WarnAbout::NoTests;  // an error, as it is in Catch2 3
}

inline bool only_lists(const Catch::ConfigData& config) {
  return config.showHelp || config.libIdentify || config.listTests || config.listTags ||
         config.listReporters || config.listTestNamesOnly;
}

inline void list_names_only(Catch::ConfigData& config) {
  config.listTestNamesOnly = true;
}

inline std::string take_junit(Catch::ConfigData& config) {
  if (config.reporterName != "junit") return {};
  config.reporterName = "console";
  const std::string file = config.outputFilename.empty() ? "-" : config.outputFilename;
  config.outputFilename.clear();
  return file;
}

#endif

// The test cases that the command line selects, without running one.
inline std::vector<std::string> selected_tests(Catch::Session& session) {
  Catch::ConfigData config = session.configData();
  list_names_only(config);
  session.useConfigData(config);
  std::ostringstream names;
  std::streambuf* const terminal = std::cout.rdbuf(names.rdbuf());
  session.run();
  std::cout.rdbuf(terminal);
  std::vector<std::string> tests;
  std::istringstream lines(names.str());
  for (std::string line; std::getline(lines, line);) tests.push_back(line);
  return tests;
}

// One failed assertion as text.
inline std::string describe(const Catch::AssertionStats& stats) {
  const Catch::AssertionResult& result = stats.assertionResult;
  const Catch::SourceLineInfo where = result.getSourceInfo();
  std::ostringstream text;
  text << where.file << ':' << where.line << '\n';
  if (result.hasExpression()) text << "  " << result.getExpressionInMacro() << '\n';
  if (result.hasExpandedExpression()) text << "with\n  " << result.getExpandedExpression() << '\n';
  if (result.hasMessage()) text << result.getMessage() << '\n';
  for (const Catch::MessageInfo& info : stats.infoMessages) text << info.message << '\n';
  return text.str();
}

}  // namespace tessera::test
