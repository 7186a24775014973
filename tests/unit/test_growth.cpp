// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Growth of memory: the fit, its verdict, and real layers.
#include <cmath>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/harness/growth.hpp"

namespace tessera::harness {

TEST_CASE("the fitted exponent is that of a power law") {
  for (const double power : {-1.0, 0.0, 0.5, 2.0}) {
    const std::vector<double> x{3, 6, 12, 48};
    std::vector<double> y;
    for (const double value : x) y.push_back(7 * std::pow(value, power));
    CHECK(std::abs(fitted_exponent(x, y) - power) < 1e-12);  // a few roundings of logarithms
  }
}

TEST_CASE("the fit is the one of least squares") {
  // log y = 0, 1, 1 over log x = 0, 1, 2: slope 1/2.
  const double e = std::exp(1.0);
  CHECK(std::abs(fitted_exponent({1, e, e * e}, {1, e, e}) - 0.5) < 1e-12);
}

TEST_CASE("without two points or with nothing measured there is no exponent") {
  CHECK(std::isnan(fitted_exponent({4}, {8})));
  CHECK(std::isnan(fitted_exponent({4, 4}, {8, 8})));
  CHECK(std::isnan(fitted_exponent({4, 8}, {0, 8})));
  CHECK(std::isnan(fitted_exponent({}, {})));
}

TEST_CASE("only saved bytes of pair layers are judged, in both variables") {
  const double none = std::nan("");
  const auto growth = [](bool pair, Purpose purpose, double tokens, double ranks) {
    return CaseGrowth{"x", pair, {{purpose, 1, 1, 1, tokens, ranks}}};
  };
  CHECK(growth(true, Purpose::saved, 2.0, -1.0).failures().empty());
  CHECK(growth(true, Purpose::saved, 2.04, -0.96).failures().empty());
  CHECK(growth(true, Purpose::saved, 2.0, none).failures().empty());
  CHECK(growth(false, Purpose::saved, 1.0, -0.5).failures().empty());
  CHECK(growth(true, Purpose::gradient, 1.0, 0.0).failures().empty());
  // Saved whole on every rank; saved as a row of tiles; one more dimension.
  REQUIRE(growth(true, Purpose::saved, 2.0, 0.0).failures().size() == 1);
  CHECK(growth(true, Purpose::saved, 2.0, 0.0).failures().front().find("ranks^0.000") !=
        std::string::npos);
  CHECK(growth(true, Purpose::saved, 2.0, -0.5).failures().size() == 1);
  CHECK(growth(true, Purpose::saved, 3.0, -1.0).failures().size() == 1);
}

TEST_CASE("what pair layers save grows as the tile") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    CAPTURE(format(shape));
    for (const Case& c : select_cases({"linear", "sigmoid_gate", "triangle_*"})) {
      const Sizes sizes{12, 12, 4};  // divisible by every mesh of up to six ranks
      const CaseGrowth growth = measure_growth(c, sizes, mesh, {});
      CHECK(growth.pair);
      CHECK(growth.failures().empty());
      REQUIRE(growth.lines.front().purpose == Purpose::saved);
      // Shards are equal, and all that is kept are tiles: exact powers, but for the logarithms.
      CHECK(std::abs(growth.lines.front().tokens_exponent - 2) < 1e-12);
      if (mesh.ranks() > 1) CHECK(std::abs(growth.lines.front().ranks_exponent + 1) < 1e-12);
    }
  }
}

}  // namespace tessera::harness
