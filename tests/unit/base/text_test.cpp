#include "lib/base/text.h"

#include <doctest/doctest.h>

using namespace ckpt;

TEST_CASE("text: what the kernel escapes in paths") {
  CHECK(unescape_octal("/a\\040b\\134\\012") == "/a b\\\n");
  CHECK(unescape_octal("\\04") == "\\04");
  CHECK(unescape_octal("\\089x\\") == "\\089x\\");
}

TEST_CASE("glob: * stays inside one dot-separated part, ** crosses parts") {
  CHECK(glob_match("*", "weight"));
  CHECK_FALSE(glob_match("*", "layer.weight"));
  CHECK(glob_match("**", "layer.0.weight"));
  CHECK(glob_match("layer.*.weight", "layer.12.weight"));
  CHECK_FALSE(glob_match("layer.*.weight", "layer.1.2.weight"));
  CHECK(glob_match("layer.**.weight", "layer.1.2.weight"));
  CHECK(glob_match("**.weight", "a.b.weight"));
  CHECK(glob_match("**.w*t", "a.b.weight"));
  CHECK_FALSE(glob_match("**.w*t", "a.weig.ht"));
  CHECK(glob_match("layer.[0-3].w?", "layer.2.wq"));
  CHECK_FALSE(glob_match("layer.[!0-3].w?", "layer.2.wq"));
  CHECK(glob_match("", ""));
  CHECK_FALSE(glob_match("", "a"));
}

TEST_CASE("glob: a hostile pattern costs no exponential time") {
  std::string key(5000, 'a'), pattern;
  for (int i = 0; i < 50; ++i) pattern += "a*";
  CHECK_FALSE(glob_match(pattern + "b", key));
}

TEST_CASE("escape: control characters and broken UTF-8 never reach a terminal") {
  CHECK(escape_for_terminal("plain.key") == "plain.key");
  CHECK(escape_for_terminal("a\x1b[31mb\n") == "a\\x1b[31mb\\x0a");
  CHECK(escape_for_terminal("\xc3\xa9") == "\xc3\xa9");
  CHECK(escape_for_terminal("\xc3") == "\\xc3");
  CHECK(escape_for_terminal("\xc2\x9b") == "\\xc2\\x9b");
}

TEST_CASE("sizes read as people write them") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(640) == "640 B");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes(uint64_t{5} << 30) == "5.00 GiB");
}
