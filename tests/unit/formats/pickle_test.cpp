#include "formats/pickle/pickle.h"

#include "formats/pickle/render.h"
#include "formats/pickle/torch_tensor.h"
#include "lib/base/program_cancel.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::pickle;
using namespace std::string_literals;

namespace {

std::string json(const std::string& data, RenderOptions options = {}) {
  options.indent = false;
  auto graph = parse(as_bytes(data));
  if (!graph) return graph.error().message;
  std::string out = to_json(*graph, graph->root(), options);
  CHECK_MESSAGE(!nlohmann::json::parse(out, nullptr, false).is_discarded(), out);
  return out;
}

/// `{"a": [1, 2.5, None, True], "b": ("x", b"y")}` with memo, as CPython writes it under protocol 4.
const std::string kBody = "}\x94(\x8c\x01"
                          "a\x94]\x94(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88"
                          "e\x8c\x01"
                          "b\x94\x8c\x01x\x94"
                          "C\x01y\x94\x86\x94u."s;
const std::string kSample = "\x80\x04\x95"s + char(kBody.size()) + "\x00\x00\x00\x00\x00\x00\x00"s + kBody;

}  // namespace

TEST_CASE("pickle: values of every plain kind come out as JSON") {
  CHECK(json(kSample) == R"({"a":[1,2.5,null,true],"b":["x",{"__bytes__": 1, "hex": "79"}]})");
  CHECK(json("\x80\x02J\xff\xff\xff\xff."s) == "-1");
  CHECK(json("\x80\x02\x8a\x02\x00\x80."s) == "-32768");
  CHECK(json("\x80\x02\x8a\x00."s) == "0");
  CHECK(json("\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."s) == "9223372036854775807");
  CHECK(json("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."s) ==
        R"({"__int__": 9, "hex": "000000000000008000"})");
  CHECK(json("\x80\x02}(K\x01K\x02u."s) == R"({"__dict__":[[1,2]]})");
  CHECK(json("\x80\x04\x8f(K\x01\x90."s) == R"({"__set__":[1]})");
  CHECK(json("(I01\nI7\nL8L\nF1.5\nS'x'\nVy\nt."s) == R"([true,7,8,1.5,"x","y"])");
}

TEST_CASE("pickle: control characters, surrogates and invalid UTF-8 in text are escaped") {
  CHECK(json("\x80\x02X\x03\x00\x00\x00\x1b[m."s) == R"("\u001b[m")");
  CHECK(json("\x80\x02X\x03\x00\x00\x00\xed\xb3\xbf."s) == R"("\\udcff")");
  CHECK(json("\x80\x02X\x02\x00\x00\x00\xff\xc2."s) == "\"\xef\xbf\xbd\xef\xbf\xbd\"");
  CHECK(json("\x80\x02X\x02\x00\x00\x00\xc2\x9b."s) == R"("\u009b")");
}

TEST_CASE("pickle: a call is a name with arguments, never more") {
  std::string evil = "cos\nsystem\n(X\x04\x00\x00\x00"s + "echo"s + "tR.";
  CHECK(json(evil) == R"({"__class__":"os.system","args":["echo"]})");
  auto graph = parse(as_bytes(evil));
  REQUIRE(graph);
  auto refused = refuse_unknown_globals(*graph);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kCorrupt);
  CHECK(refused.error().causes == std::vector<std::string>{"os.system"});
}

TEST_CASE("pickle: a state for a module's name is refused") {
  CHECK(json("csys\n\n}b."s).find("a state for something that is not an object") != std::string::npos);
}

TEST_CASE("pickle: items for what takes none are refused") {
  CHECK(json("K\x01K\x02K\x03s."s).find("cannot take them") != std::string::npos);
  CHECK(json("\x80\x02)K\x01\x61."s).find("cannot take them") != std::string::npos);
  CHECK(json("}K\x01\x61."s).find("cannot take them") != std::string::npos);
  CHECK(json("}(K\x01u."s).find("no value") != std::string::npos);
}

TEST_CASE("pickle: pops below a mark, lost marks and missing memo entries are refused") {
  for (const std::string& bad :
       {"."s, "0."s, "(."s, "N(\x85."s, "t."s, "e."s, "h\x05."s, "N(0R."s, "\x94."s, "R."s, "Nb."s, "NN."s,
        "]K\x01(a."s, "\x93."s, "K\x01K\x02\x93."s, "NNR."s, "Q."s, "(NNd0(."s}) {
    CHECK_MESSAGE(!parse(as_bytes(bad)), bad);
  }
}

TEST_CASE("pickle: opcodes that no checkpoint uses are refused by name") {
  for (const std::string& bad : {"\x82\x01."s, "\x97."s, "Pid\n."s, "(icls\nx\n."s, "(N.o."s, "S'\\x41'\n."s}) {
    auto graph = parse(as_bytes(bad));
    REQUIRE(!graph);
    bool named = graph.error().code == Code::kUnsupported || graph.error().message.find("STOP") != std::string::npos;
    CHECK_MESSAGE(named, graph.error().message);
  }
}

TEST_CASE("pickle: a list that holds itself ends, and so does a list of the same list sixty levels deep") {
  CHECK(json("]q\x00h\x00\x61."s) == R"([{"__cycle__": true}])");
  std::string bomb = "]q"s + '\0' + "K\x01"s + "a";
  for (char level = 1; level < 60; ++level) {
    char below = static_cast<char>(level - 1);
    bomb += "]q"s + level + "(h"s + below + "h"s + below + "e";
  }
  bomb += "q\x3c"s;
  for (int level = 1; level < 60; ++level) bomb += "\x86"s;  // 60 lists on the stack become one nest of pairs
  RenderOptions small;
  small.max_nodes = 1000;
  std::string out = json(bomb + ".", small);
  CHECK(out.find("too many nodes") != std::string::npos);
  CHECK(out.size() < 100'000);
}

TEST_CASE("pickle: nesting deeper than the limit is cut, not followed") {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += ']';
  for (int i = 0; i < 99999; ++i) deep += 'a';
  CHECK(json(deep + ".").find("too deep") != std::string::npos);
}

TEST_CASE("pickle: a huge memo index, a huge string and a huge integer allocate nothing") {
  CHECK(!parse(as_bytes("Nr\xff\xff\xff\x7f."s)));
  CHECK(!parse(as_bytes("X\xff\xff\xff\x7f."s)));
  CHECK(!parse(as_bytes("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s)));
  CHECK(!parse(as_bytes("\x8b\xff\xff\xff\x7f."s)));
}

TEST_CASE("pickle: limits are kept") {
  Limits limits;
  limits.opcodes = 5;
  CHECK(!parse(as_bytes("NNNNN0000."s), limits));
  limits = {};
  limits.bytes = 3;
  CHECK(!parse(as_bytes(kSample), limits));
  limits = {};
  limits.stack = 2;
  CHECK(!parse(as_bytes("NNN00."s), limits));
}

TEST_CASE("pickle: a stop that is asked for is heard in the middle of a long one") {
  std::string data;
  for (int i = 0; i < 200'000; ++i) data += "N0";
  data += "N.";
  CHECK(parse(as_bytes(data)));
  static Cancel cancel;
  cancel.request();
  set_program_cancel(cancel);
  const auto stopped = parse(as_bytes(data));
  const auto loose = parse_loosely(as_bytes(data));
  static const Cancel never;
  set_program_cancel(never);
  REQUIRE(!stopped);
  CHECK(stopped.error().code == Code::kInterrupted);
  CHECK(loose.stopped == "interrupted");
}

TEST_CASE("pickle: a container that grows in turns with another keeps its items") {
  std::string data = "]q"s + '\0' + "]q\x01"s + "0";
  for (int i = 0; i < 100; ++i) data += "K"s + char(i) + "ah\x01K"s + char(i + 100) + "a0";
  auto graph = parse(as_bytes(data + "h\x01\x86."s));
  REQUIRE_MESSAGE(graph, (graph ? "" : graph.error().message));
  auto both = graph->items(graph->root());
  REQUIRE(both.size() == 2);
  for (size_t list = 0; list < 2; ++list) {
    auto items = graph->items(both[list]);
    REQUIRE(items.size() == 100);
    for (size_t i = 0; i < 100; ++i) CHECK(graph->as_int(items[i]) == static_cast<int64_t>(i + 100 * list));
  }
}

TEST_CASE("pickle: cut at every byte it is refused, changed at every byte it never does harm") {
  for (size_t n = 0; n < kSample.size(); ++n) CHECK(!parse(as_bytes(std::string_view(kSample).substr(0, n))));
  for (size_t i = 0; i < kSample.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string bad = kSample;
      bad[i] = static_cast<char>(value);
      if (auto graph = parse(as_bytes(bad))) (void)to_json(*graph, graph->root());
    }
  }
}

TEST_CASE("pickle: the hostile fixtures are refused or shown, by name, and nothing runs") {
  auto root = fixture("picklescan-hostile");
  if (!root) return;
  size_t named = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*root)) {
    std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".pkl") continue;
    auto bytes = io::read_file(entry.path(), 1 << 20);
    REQUIRE(bytes);
    auto graph = parse(as_bytes(*bytes));
    if (name.rfind("benign", 0) == 0) {
      CHECK_MESSAGE(graph, name);
      if (graph) CHECK(refuse_unknown_globals(*graph));
      continue;
    }
    if (graph) CHECK_MESSAGE(!refuse_unknown_globals(*graph), name);
    ++named;
  }
  CHECK(named >= 9);
}
