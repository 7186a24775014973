// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/harness/case.hpp"

#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

Case own_case(std::string name) {
  Case c = *find_case("linear");
  c.name = std::move(name);
  return c;
}

}  // namespace

TEST_CASE("a case of one's own is found like a built-in one") {
  const std::size_t before = all_cases().size();
  CHECK(find_case("own.linear") == nullptr);
  add_case(own_case("own.linear"));
  CHECK(all_cases().size() == before + 1);
  REQUIRE(find_case("own.linear") != nullptr);
  CHECK(select_cases({"own.*"}).size() == 1);
}

TEST_CASE("hyperparameters that a layer does not have, or that do not fit, are refused") {
  const Build on{DeviceMesh::serial(), DType::f64};
  const auto build = [&](const char* name, const char* text) {
    build_layer(*find_case(name), on, nlohmann::json::parse(text));
  };
  build("transition", R"({"dim": 4, "hidden": 6})");  // out_dim has a default
  const auto refused = [&](const char* text, const auto&... words) {
    require_error<UsageError>([&] { build("transition", text); }, "[layer transition]", words...);
  };
  const char* whole = "a whole number from 1 to 2147483647";
  refused(R"({"dim": 4, "hiden": 6})", "'hiden'", "found 6", "dim, hidden, out_dim");
  refused(R"({"dim": 4})", "'hidden'", "found an object of dim;", "dim, hidden, out_dim");
  refused(R"({"dim": 16.5, "hidden": 6})", "'dim'", "found 16.5", whole);
  refused(R"({"dim": -3, "hidden": 6})", "'dim'", "found -3", whole);
  refused(R"({"dim": 4, "hidden": 0})", "'hidden'", "found 0", whole);
  refused(R"({"dim": 4294967297, "hidden": 6})", "found 4294967297", whole);
  refused(R"({"dim": 18446744073709551615, "hidden": 6})", "found 18446744073709551615", whole);
  refused(R"({"dim": "4", "hidden": 6})", "found \"4\"", whole);
  refused(R"({"dim": null, "hidden": 6})", "found null", whole);
  for (const char* text : {"[4, 6]", "4", "null"})
    refused(text, "no JSON object", text[0] == '[' ? "found an array" : text,
            "an object of dim, hidden, out_dim");
  require_error<UsageError>([&] { build("linear", R"({"in": 4, "out": 2, "bias": 1})"); }, "'bias'",
                            "found 1", "true or false");
  require_error<UsageError>(
      [&] {
        build("triangle_attention_ending_node",
              R"({"c_in": 4, "c_hidden": 2, "no_heads": 2, "inf": "1e9"})");
      },
      "'inf'", "a number from 0");
  require_error<UsageError>(
      [&] {
        build("triangle_attention_ending_node",
              R"({"c_in": 4, "c_hidden": 2, "no_heads": 2, "inf": -1})");
      },
      "'inf'", "found -1", "a number from 0");
  require_error<UsageError>([&] { build("sigmoid_gate", R"({"dim": 4})"); }, "'dim'",
                            "expected none");
  require_error<UnsupportedError>(
      [&] {
        build("pairformer_layer",
              R"({"token_z": 4, "dropout": 0, "pairwise_head_width": 2, "pairwise_num_heads": 2,
                  "token_s": 4, "num_heads": 2, "v2": false})");
      },
      "v2 = false");
}

TEST_CASE("every case can be built from the hyperparameters of its random problems") {
  for (const Case& c : all_cases()) {
    CAPTURE(c.name);
    nlohmann::json h = *c.problem({}).hyperparameters;
    build_layer(c, {DeviceMesh::serial(), DType::f64}, h);
    h["misspelt"] = 1;
    require_error<UsageError>(
        [&] {
          build_layer(c, {DeviceMesh::serial(), DType::f64}, h);
        },
        c.name, "'misspelt'");
  }
}

TEST_CASE("a case of one's own needs a name that nobody has, a problem and a layer") {
  const std::size_t before = all_cases().size();
  require_error<UsageError>([] { add_case(own_case("transition")); }, "add_case", "'transition'");
  require_error<UsageError>([] { add_case(own_case("")); }, "needs a name");
  Case empty;
  empty.name = "own.nothing";
  require_error<UsageError>([&] { add_case(empty); }, "'own.nothing'", "a way to build");
  CHECK(all_cases().size() == before);
}
