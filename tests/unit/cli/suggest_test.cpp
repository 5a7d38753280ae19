#include "cli/suggest.h"

#include <doctest/doctest.h>

using ckpt::cli::nearest;

TEST_CASE("did you mean: a letter more, less, another, two swapped; nothing where no name is near") {
  const std::vector<std::string> verbs = {"pre-dump", "dump", "restore", "inspect", "verify", "rm"};
  CHECK(nearest("predump", verbs) == "pre-dump");
  CHECK(nearest("inpsect", verbs) == "inspect");
  CHECK(nearest("dmup", verbs) == "dump");
  CHECK(nearest("rstore", verbs) == "restore");
  CHECK(nearest("insp", verbs) == "inspect");
  CHECK(nearest("frobnicate", verbs).empty());
  CHECK(nearest("ls", verbs).empty());
  CHECK(nearest("x", verbs).empty());
  CHECK(nearest("", verbs).empty());
  CHECK(nearest(std::string(10'000, 'd'), verbs).empty());
}
