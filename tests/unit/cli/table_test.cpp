#include "cli/table.h"

#include <doctest/doctest.h>

using namespace ckpt::cli;

TEST_CASE("tables: wide characters take two columns, combining ones none, broken ones one for each byte") {
  CHECK(display_width("abc") == 3);
  CHECK(display_width("\xe6\x97\xa5\xe6\x9c\xac") == 4);  // two characters of Japanese
  CHECK(display_width("e\xcc\x81") == 1);                 // e and a combining accent
  CHECK(display_width("\xff\xe6") == 2);
  const Table table{{"NAME", "N"}, {{"\xe6\x97\xa5\xe6\x9c\xac", "1"}, {"abcd", "2"}}, {1}, {}};
  const auto lines = lay_out(table, 0);
  CHECK(lines[1] == "\xe6\x97\xa5\xe6\x9c\xac  1");
  CHECK(lines[2] == "abcd  2");
}

TEST_CASE("tables: names are cut in the middle, to the column") {
  CHECK(elide_middle("abcdefghij", 10) == "abcdefghij");
  CHECK(elide_middle("abcdefghijk", 10) == "abc...hijk");
  CHECK(elide_middle("abcdef", 2) == "ab");
  for (size_t columns = 0; columns < 12; ++columns)
    CHECK(display_width(elide_middle("\xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac\xe6\x97\xa5\xe6\x9c\xac",
                                     columns)) <= columns);
}

TEST_CASE("tables: no wider than the terminal, numbers whole; in a pipe nothing is cut") {
  const std::string name(100, 'x'), other(50, 'y');
  const Table table{{"NAME", "SIZE", "OTHER"}, {{name, "123456789012345678", other}}, {1}, {}};
  CHECK(lay_out(table, 0)[1].size() == 100 + 2 + 18 + 2 + 50);
  const auto lines = lay_out(table, 80);
  CHECK(lines[1].size() == 80);
  CHECK(lines[1].find("123456789012345678") != std::string::npos);
  CHECK(lay_out(table, 20)[1].find("123456789012345678") != std::string::npos);  // no column below its least
}

TEST_CASE("tables: what says a thing of a name goes on in the next line") {
  const Table table{{}, {{"phases", "one two three four five"}, {"id", "0123456789012345678901234567890"}}, {}, {}};
  CHECK(lay_out(table, 0).size() == 2);
  const std::vector<std::string> lines = lay_out(table, 22);
  CHECK(lines == std::vector<std::string>{"phases  one two three", "        four five",
                                          "id      0123456789012345678901234567890"});
}

TEST_CASE("tables: words of verdicts are coloured, what else begins so is not") {
  CHECK(with_verdict("damaged: x") == "\033[1;31mdamaged\033[0m: x");
  CHECK(with_verdict("complete  ") == "\033[32mcomplete\033[0m  ");
  CHECK(with_verdict("not yet") == "not yet");
  CHECK(with_verdict("nothing") == "nothing");
  const auto lines = lay_out({{"NAME", "STATE"}, {{"damaged", "damaged"}, {"x", "complete"}}, {}, {1}}, 0);
  CHECK(lines[0] == "NAME     STATE");
  CHECK(lines[1] == "damaged  \033[1;31mdamaged\033[0m");
  CHECK(lines[2] == "x        \033[32mcomplete\033[0m");
}
