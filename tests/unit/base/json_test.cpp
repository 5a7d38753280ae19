#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>

#include "lib/base/json_writer.h"
#include "lib/base/json_reader.h"
#include "lib/base/json_text.h"

using namespace ckpt;

namespace {

using Rng = std::mt19937_64;
using Json = nlohmann::ordered_json;

/// Whether the text is JSON; `fault` is what is wrong.
bool accepted(std::string_view text, JsonReader::Limits limits = {}, std::string* fault = nullptr) {
  JsonReader reader(text, limits);
  reader.skip();
  reader.finish();
  if (fault != nullptr) *fault = reader.fault();
  return !reader.failed();
}

std::string random_word(Rng& rng) {
  static const std::vector<std::string> kWords = {"",
                                                  "a",
                                                  "with \"quotes\" and \\",
                                                  "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                                                  "\x01\n\t\x7f",
                                                  "a longer text that takes up much of a line",
                                                  "[,:]{}"};
  return kWords[rng() % kWords.size()];
}

Json random_json(Rng& rng, int depth) {
  switch (rng() % (depth > 0 ? 8 : 5)) {
    case 0: return nullptr;
    case 1: return rng() % 2 == 0;
    case 2: return static_cast<int64_t>(rng()) >> (rng() % 64);
    case 3: return 0.5 * static_cast<double>(rng() % 1000);
    case 4: return random_word(rng);
    case 5: {
      Json out = Json::object();
      for (size_t i = rng() % 6; i > 0; --i) out["key" + std::to_string(i)] = random_json(rng, depth - 1);
      return out;
    }
    default: {
      Json out = Json::array();
      for (size_t i = rng() % 12; i > 0; --i) out.push_back(random_json(rng, depth - 1));
      return out;
    }
  }
}

}  // namespace

TEST_CASE("json: the reader takes what nlohmann's takes and refuses what that refuses") {
  Rng rng(1);
  static constexpr std::string_view kAlphabet =
      "{}[]\",:\\ \n0123456789-+.eEtruefalsnu/b\x01\xc3\xa9\xed\xa0\x80\xf0\xff";
  size_t good = 0, bad = 0;
  for (int i = 0; i < 30'000; ++i) {
    std::string text = random_json(rng, 3).dump(rng() % 2 == 0 ? -1 : 1, ' ', rng() % 2 == 0);
    for (size_t change = rng() % 4; change > 0 && !text.empty(); --change) {
      const size_t at = rng() % text.size();
      const char c = kAlphabet[rng() % kAlphabet.size()];
      switch (rng() % 3) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        default: text.erase(at, 1); break;
      }
    }
    bool expected = false;
    try {
      expected = !Json::parse(text).is_discarded();
    } catch (const Json::parse_error&) {
      // Refused.
    } catch (const Json::out_of_range&) {
      continue;  // 1e999 is JSON, but fits into no double
    }
    REQUIRE_MESSAGE(accepted(text) == expected, text);
    ++(expected ? good : bad);
  }
  CHECK(good > 3'000);
  CHECK(bad > 3'000);
}

TEST_CASE("json: strings and numbers come back from the reader as they were") {
  auto string_of = [](std::string_view text) {
    JsonReader reader(text, {});
    CHECK(reader.peek() == '"');
    std::string out(reader.string());
    reader.finish();
    return reader.failed() ? "FAULT" : out;
  };
  CHECK(string_of(R"("plain")") == "plain");
  CHECK(string_of(R"( "\"\\\/\b\f\n\r\t" )") == "\"\\/\b\f\n\r\t");
  CHECK(string_of(R"("\u0041\u00e9\u20AC\ud83d\ude00")") == "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(string_of(R"("a\u0000b")") == std::string("a\0b", 3));
  for (const char* wrong : {R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")", R"("\x41")", R"("\u004")",
                            "\"\xed\xa0\x80\"", "\"\xc0\xaf\"", "\"\n\"", "\"a"}) {
    CHECK_MESSAGE(string_of(wrong) == "FAULT", wrong);
  }
  auto number_of = [](std::string_view text) {
    JsonReader reader(text, {});
    CHECK(reader.peek() == 'n');
    auto number = reader.number();
    CHECK_FALSE(reader.failed());
    return number ? (number->negative ? "-" : "") + std::to_string(number->magnitude) : "none";
  };
  for (const char* whole : {"0", "-0", "7", "-12", "18446744073709551615", "-9223372036854775808"})
    CHECK(number_of(whole) == whole);
  for (const char* none : {"18446744073709551616", "1.0", "1e3", "-0.5", "99999999999999999999999"})
    CHECK(number_of(none) == "none");
}

TEST_CASE("json: the reader keeps its limits and says at which byte they were passed") {
  std::string fault;
  CHECK(accepted("[[[]]]", {.depth = 3, .values = 3}));
  CHECK_FALSE(accepted("[[[]]]", {.depth = 2, .values = 3}, &fault));
  CHECK(fault == "is nested deeper than 2, at byte 2");
  CHECK_FALSE(accepted("[0, {\"a\": 1}]", {.depth = 2, .values = 3}, &fault));
  CHECK(fault == "holds more than 3 values, at byte 10");
  CHECK_FALSE(accepted(std::string(1'000'000, '['), {}, &fault));
  CHECK_FALSE(accepted("[1 2]", {}, &fault));
  CHECK(fault == "is not JSON: a comma is missing at byte 3");
  CHECK_FALSE(accepted("[1}", {}));
  CHECK_FALSE(accepted("{\"a\": 1]", {}));
}

TEST_CASE("json: members are found in another order by going back") {
  JsonReader reader(R"({"a": [1, {}], "b": 2})", {});
  CHECK(reader.peek() == '{');
  reader.enter();
  const auto start = reader.position();
  CHECK(reader.next('{', true));
  CHECK_FALSE(reader.try_key("b"));
  CHECK(reader.key() == "a");
  reader.skip();
  CHECK(reader.next('{', false));
  CHECK(reader.try_key("b"));
  CHECK(reader.peek() == 'n');
  CHECK(reader.number()->magnitude == 2);
  reader.seek(start);
  CHECK(reader.next('{', true));
  CHECK(reader.try_key("a"));
  reader.skip();
  CHECK(reader.next('{', false));
  CHECK(reader.key() == "b");
  reader.skip();
  CHECK_FALSE(reader.next('{', false));
  reader.finish();
  CHECK(reader.fault() == "");
}

TEST_CASE("json: a layout keeps every value, and the width where there is a place to break") {
  Rng rng(2);
  for (int i = 0; i < 5000; ++i) {
    const Json doc = random_json(rng, 5);
    const size_t width = 20 + rng() % 120;
    const std::string text = lay_out_json(doc.dump(), width);
    REQUIRE(text.back() == '\n');
    CHECK(Json::parse(text).dump() == doc.dump());
    CHECK(lay_out_json(text, width) == text);
    for (size_t at = 0; at < text.size();) {
      const std::string_view line = std::string_view(text).substr(at, text.find('\n', at) - at);
      // Too long is only what cannot be broken: one scalar, perhaps behind its name.
      if (line.size() > width) {
        const std::string scalar(line.substr(line.find_first_not_of(' ')));
        const std::string bare = scalar.back() == ',' ? scalar.substr(0, scalar.size() - 1) : scalar;
        const size_t value = bare.rfind("\"key", 0) == 0 ? bare.find(": ") + 2 : 0;
        CHECK_MESSAGE((bare.back() == '{' || bare.back() == '[' || Json::parse(bare.substr(value)).is_primitive()),
                      line);
      }
      at += line.size() + 1;
    }
  }
}

TEST_CASE("json: the writer's members say what they were given") {
  JsonWriter json;
  json.open('{');
  json.members("text", "a\"b", "yes", true, "most", UINT64_MAX, "least", INT64_MIN, "none", std::optional<uint64_t>(),
               "some", std::optional<uint64_t>(7));
  json.members("real", 0.1, "float", 0.1f, "whole", 1e20, "nan", std::nan(""), "infinite", HUGE_VALF);
  json.members("shape", std::vector<uint64_t>{3, 0}, "names", std::vector<std::string>{"x", "\xff"},
               "pairs", std::vector<std::array<int, 2>>{{1, 2}});
  json.key_text("a \"name\"\n\xc3\xa9");
  json.hex(255);
  json.key_json(R"("\u00e9")");
  json.null();
  json.feed("fed", R"({"a":[1,{}]})");
  json.open("list", '[');
  json.values("word", 1, false);
  const std::string text = std::move(json).finish();  // closes the list and the whole
  CHECK(Json::parse(text).dump(-1, ' ', true) ==
        R"({"text":"a\"b","yes":true,"most":18446744073709551615,"least":-9223372036854775808,"none":null,"some":7,)"
        R"("real":0.1,"float":0.1,"whole":1e+20,"nan":null,"infinite":null,"shape":[3,0],"names":["x","\ufffd"],)"
        R"("pairs":[[1,2]],"a \"name\"\n\u00e9":"0xff","\u00e9":null,"fed":{"a":[1,{}]},"list":["word",1,false]})");
}

TEST_CASE("json: a row stays on one line, and all around it has lines") {
  JsonWriter json(20);
  json.open('{');
  json.open("list", '[');
  json.row_of("key", "longer than the width", "shape", std::vector<int>{1, 2});
  json.row('[');
  json.open('{');
  json.close();
  json.close();
  json.close();
  json.key("row");
  json.row_of("a", 1);
  json.members("empty", std::vector<int>(), "last", std::vector<int>{1, 2});
  CHECK(std::move(json).finish() == R"({
  "list": [
    {"key": "longer than the width", "shape": [1, 2]},
    [{}]
  ],
  "row": {"a": 1},
  "empty": [],
  "last": [1, 2]
}
)");
  JsonWriter whole;
  whole.row_of("a", 1);
  CHECK(std::move(whole).finish() == "{\"a\": 1}\n");
}

TEST_CASE("json: width 0 is the layout of Python's json.dumps(indent=2)") {
  CHECK(lay_out_json(R"({"a":{"b":1},"c":{},"d":[1,[]]})", 0) ==
        "{\n  \"a\": {\n    \"b\": 1\n  },\n  \"c\": {},\n  \"d\": [\n    1,\n    []\n  ]\n}\n");
}

namespace {

/// Writes the value, and takes what is settled after every piece.
void write_in_parts(JsonWriter& json, const Json& value, bool rows, std::string& out) {
  if (value.is_structured()) {
    const char bracket = value.is_object() ? '{' : '[';
    if (rows && value.size() == 2) json.row(bracket);
    else json.open(bracket);
    for (const auto& item : value.items()) {
      if (value.is_object()) json.key_text(item.key());
      out += json.take();
      write_in_parts(json, item.value(), rows, out);
    }
    json.close();
  } else {
    json.scalar(value.dump());
  }
  out += json.take();
}

}  // namespace

TEST_CASE("json: text taken in parts is the text written at once") {
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    const Json doc = random_json(rng, 5);
    const size_t width = rng() % 120;
    JsonWriter json(width), rows(width);
    std::string text, text_of_rows;
    write_in_parts(json, doc, false, text);
    text += std::move(json).finish();
    CHECK(text == lay_out_json(doc.dump(), width));
    write_in_parts(rows, doc, true, text_of_rows);
    text_of_rows += std::move(rows).finish();
    CHECK(Json::parse(text_of_rows).dump() == doc.dump());
  }
}

TEST_CASE("json: a document that is taken as it grows needs little memory") {
  JsonWriter json;
  json.open('{');
  json.open("list", '[');
  size_t parts = 0, most = 0;
  for (int i = 0; i < 100'000; ++i) {
    json.row_of("key", i, "shape", std::vector<int>{i, i});
    if (!json.full()) continue;
    ++parts;
    most = std::max(most, json.take().size());
  }
  CHECK(parts > 40);
  CHECK(most < 66'000);
}

TEST_CASE("json: strings in ASCII come back, and what is no UTF-8 is told") {
  std::string out;
  CHECK(try_append_ascii_json_string(out, "a\"\\\n\x7f\xc3\xa9\xf0\x9f\x98\x80"));
  const std::string written = R"("a\"\\\u000a\u007f\u00e9\ud83d\ude00")";
  CHECK(out == written);
  for (const char* wrong : {"\xff", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    CHECK_FALSE(try_append_ascii_json_string(out, wrong));
  }
  CHECK(out == written);
}
