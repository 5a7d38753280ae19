#include "cli/config.h"

#include <CLI/CLI.hpp>
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "lib/base/io.h"

using namespace ckpt;
using namespace ckpt::cli;

namespace {

/// An environment variable for the length of a test.
struct Variable {
  const char* name;
  Variable(const char* n, const std::string& value) : name(n) { ::setenv(n, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name); }
};

struct ConfigFile {
  std::string path;
  explicit ConfigFile(std::string_view text) {
    path = (std::filesystem::temp_directory_path() / "ckpt-config-XXXXXX").string();
    UniqueFd fd(::mkstemp(path.data()));
    REQUIRE(io::write_all(fd.get(), as_bytes(text), path));
  }
  ~ConfigFile() { std::filesystem::remove(path); }
};

/// A command line with one global option and one verb, as it stands after parsing `words`.
struct Parsed {
  std::string color = "auto";
  int workers = 1;
  bool force = false;
  Result<void> result;

  explicit Parsed(std::vector<std::string> words) {
    CLI::App app("test", "ckpt");
    app.add_option("--color", color)->check(CLI::IsMember({"auto", "always", "never"}));
    CLI::App* verb = app.add_subcommand("convert");
    verb->fallthrough();
    verb->add_option("--workers", workers);
    verb->add_flag("--force", force);
    auto origins = apply_defaults(app);
    if (origins) app.parse(std::move(words));
    if (!origins) result = std::move(origins).error();
  }
};

}  // namespace

TEST_CASE("config: sections, comments and quotes; every setting knows its line") {
  auto settings = parse_config("# top\ncolor = never # why\n\n[convert]\nworkers=4\nname = \"a # b\"\r\n", "f");
  REQUIRE(settings);
  REQUIRE(settings->size() == 3);
  CHECK((*settings)[0].value == "never");
  CHECK((*settings)[0].line == 2);
  CHECK((*settings)[1].section == "convert");
  CHECK((*settings)[1].value == "4");
  CHECK((*settings)[2].value == "a # b");
}

TEST_CASE("config: a line that says nothing is refused with its number") {
  for (const char* text :
       {"\nword", "\n[open", "\nkey =", "\n= value", "\nkey = \"open", "\nkey = \"a\" b", "\n[a] b"}) {
    CAPTURE(text);
    auto settings = parse_config(text, "f");
    REQUIRE_FALSE(settings);
    CHECK(settings.error().code == Code::kUsage);
    CHECK(settings.error().subject == "f:2");
  }
}

TEST_CASE("precedence: flag, then variable, then config file, then what is built in") {
  ConfigFile file("color = always\n[convert]\nworkers = 2\nforce = true\n");
  Variable config("CKPT_CONFIG", file.path);
  CHECK(Parsed({"convert"}).workers == 2);
  CHECK(Parsed({"convert"}).force);
  CHECK(Parsed({"convert"}).color == "always");
  Variable workers("CKPT_CONVERT_WORKERS", "3"), color("CKPT_COLOR", "never");
  CHECK(Parsed({"convert"}).workers == 3);
  CHECK(Parsed({"convert"}).color == "never");
  CHECK(Parsed({"4", "--workers", "convert"}).workers == 4);  // CLI11 takes a vector back to front
  CHECK(Parsed({"auto", "--color", "convert"}).color == "auto");
}

TEST_CASE("config: an unknown verb or option, a bad value, and a named file that is missing are refused") {
  for (const char* text : {"[frobnicate]\nx = 1", "shape = round", "[convert]\nhelp = true", "color = pink",
                           "[convert]\nworkers = many"}) {
    CAPTURE(text);
    ConfigFile file(text);
    Variable config("CKPT_CONFIG", file.path);
    Parsed parsed({"convert"});
    REQUIRE_FALSE(parsed.result);
    CHECK(parsed.result.error().code == Code::kUsage);
    CHECK(parsed.result.error().subject.find(file.path) == 0);
  }
  Variable config("CKPT_CONFIG", "/nonexistent/config.toml");
  Parsed parsed({"convert"});
  REQUIRE_FALSE(parsed.result);
  CHECK(parsed.result.error().code == Code::kNotFound);
}

TEST_CASE("config: no file at the usual place is no error, and an empty CKPT_CONFIG means none") {
  {
    Variable home("XDG_CONFIG_HOME", "/nonexistent");
    CHECK(Parsed({"convert"}).result);
  }
  Variable config("CKPT_CONFIG", "");
  CHECK(Parsed({"convert"}).result);
}
