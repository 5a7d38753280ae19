#include <doctest/doctest.h>

#include "formats/pickle/emit.h"
#include "formats/pickle/render.h"
#include "formats/pickle/rewrap.h"
#include "formats/pickle/writer.h"

using namespace ckpt;
using namespace std::string_literals;

namespace {
std::string integer(uint64_t value) {
  pickle::Writer out;
  out.take();
  out.integer(value);
  return out.take();
}
}  // namespace

TEST_CASE("pickle writer: integers take the shortest opcode that the restricted loader knows") {
  CHECK(integer(0) == "K\0"s);
  CHECK(integer(255) == "K\xff");
  CHECK(integer(256) == "M\0\x01"s);
  CHECK(integer(65535) == "M\xff\xff");
  CHECK(integer(65536) == "J\0\0\x01\0"s);
  CHECK(integer(0x7fffffff) == "J\xff\xff\xff\x7f");
  CHECK(integer(0x80000000) == "\x8a\x05\0\0\0\x80\0"s);
  CHECK(integer(0xffffffff) == "\x8a\x05\xff\xff\xff\xff\0"s);
  CHECK(integer(0x7fffffffff) == "\x8a\x05\xff\xff\xff\xff\x7f");
  CHECK(integer(UINT64_MAX) == "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0"s);
}

TEST_CASE("pickle writer: a global is written once and fetched from the memo afterwards, past 256 entries too") {
  pickle::Writer out;
  out.global("torch", "Size");
  out.global("torch", "float32");
  out.global("torch", "Size");
  CHECK(out.take() == "\x80\x02" "ctorch\nSize\nq\0ctorch\nfloat32\nq\x01h\0"s);
  for (int i = 0; i < 300; ++i) out.global("m", std::to_string(i));
  out.take();
  out.global("m", "299");
  CHECK(out.take() == "j\x2d\x01\0\0"s);
}

TEST_CASE("pickle writer: texts and tuples") {
  pickle::Writer out;
  out.take();
  out.text("k\xc3\xa9y");
  CHECK(out.take() == "X\x04\0\0\0k\xc3\xa9y"s);
  out.integers({});
  out.integers({3, 70000});
  CHECK(out.take() == ")(K\x03J\x70\x11\x01\0t"s);
}

TEST_CASE("rewrap: a body is wrapped without its frames, and comes out of the list again") {
  const std::string body = "}q\0X\x01\0\0\0aK\x01s"s;
  auto wrapped = pickle::wrap_in_list("\x80\x02" + body + ".");
  REQUIRE(wrapped);
  CHECK(*wrapped == "\x80\x02]" + body + "a.");
  auto back = pickle::unwrap_list(*wrapped);
  REQUIRE(back);
  CHECK(*back == "\x80\x02" + body + ".");
  auto framed = pickle::wrap_in_list("\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94K\x01" "a."s);
  REQUIRE(framed);
  CHECK(*framed == "\x80\x04]]\x94K\x01" "aa.");
}

TEST_CASE("rewrap: torch's list with its memo entry is taken off, unless the body refers to it") {
  auto plain = pickle::unwrap_list("\x80\x02]q\0}q\x01" "a."s);
  REQUIRE(plain);
  CHECK(*plain == "\x80\x02}q\x01."s);
  CHECK_FALSE(pickle::unwrap_list("\x80\x02]q\0h\0a."s));       // a list that holds itself
  CHECK_FALSE(pickle::unwrap_list("\x80\x02]q\0K\x01" "aK\x02" "a."s));  // two elements
  CHECK_FALSE(pickle::unwrap_list("\x80\x02]q\0(K\x01K\x02" "e."s));
  CHECK_FALSE(pickle::unwrap_list("\x80\x02]q\0."s));           // none
  CHECK_FALSE(pickle::unwrap_list("\x80\x02}q\0."s));
  CHECK_FALSE(pickle::unwrap_list("\x80\x04]\x94K\x01" "a."));  // the memo would be renumbered
}

TEST_CASE("rewrap: a pickle cut at any byte, followed by bytes or of protocol 0 is refused") {
  const std::string whole = "\x80\x02}q\0X\x03\0\0\0keyctorch\nfloat32\n\x8a\x02\x01\x02\x85s."s;
  REQUIRE(pickle::wrap_in_list(whole));
  for (size_t n = 0; n < whole.size(); ++n) CHECK_FALSE(pickle::wrap_in_list(whole.substr(0, n)));
  CHECK_FALSE(pickle::wrap_in_list(whole + "x"));
  CHECK_FALSE(pickle::wrap_in_list("(lp0\n."));
  CHECK_FALSE(pickle::wrap_in_list("\x80\x02\x82\x01."));             // extension registry
  CHECK_FALSE(pickle::wrap_in_list("\x80\x02X\xff\xff\xff\xffz."));   // a length past the end
}

namespace {

using namespace ckpt::pickle;

/// The JSON of a pickle, and of what is written again from its graph.
std::pair<std::string, std::string> twice(const std::string& data) {
  auto graph = parse(as_bytes(data));
  REQUIRE(graph);
  pickle::Writer out;
  Emitter emitter(out, *graph, [](NodeId) { return Result<void>(); });
  auto done = emitter.emit(graph->root());
  if (!done) return {"refused", done.error().message};
  out.stop();
  const std::string text = out.take();
  auto again = parse(as_bytes(text));
  REQUIRE_MESSAGE(again, (again ? "" : again.error().text()));
  RenderOptions options;
  options.indent = false;
  return {to_json(*graph, graph->root(), options), to_json(*again, again->root(), options)};
}

}  // namespace

TEST_CASE("pickle: what is written again from a graph builds the same, shared and cyclic parts included") {
  using namespace std::string_literals;
  const std::string samples[] = {
      "\x80\x02}(X\x01\x00\x00\x00"
      "aK\x01X\x01\x00\x00\x00"
      "bJ\xff\xff\xff\xffX\x01\x00\x00\x00"
      "cG?\xf0\x00\x00\x00\x00\x00\x00u."s,
      "\x80\x02]q\x00(]q\x01h\x01h\x00N\x88\x89)e."s,  // a list twice, and the outer one in itself
      "\x80\x04\x8f(K\x01K\x02\x90."s,
      "\x80\x04(K\x01\x91."s,                                        // a set, a frozenset
      "\x80\x02\x8a\x0a\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a."s,  // an integer past 64 bits
      "\x80\x02"
      "cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00xK\x05sb."s,  // NEWOBJ, BUILD
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00xK\x05u."s,  // items of an object
  };
  for (const std::string& sample : samples) {
    auto [before, after] = twice(sample);
    if (sample[1] == 2) CHECK(before == after);
    CHECK(before != "refused");
  }
  CHECK(twice("\x80\x04\x96\x02\x00\x00\x00\x00\x00\x00\x00hi."s).first != "refused");
  std::string deep = "\x80\x02";
  for (int i = 0; i < 600; ++i) deep += ']';
  deep += "K\x01";
  for (int i = 0; i < 600; ++i) deep += 'a';
  CHECK(twice(deep + ".").second.find("deep") != std::string::npos);
}
