// A program of unit tests. Where tests passed only since fixtures are not there, it ends with 77, which ctest shows as
// skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/support/fixtures.h"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  for (const std::string& name : ckpt::test::missing_fixtures())
    std::printf("skipped: the fixture %s is not there\n", name.c_str());
  if (failed != 0 || context.shouldExit()) return failed;
  return ckpt::test::missing_fixtures().empty() ? 0 : 77;
}
