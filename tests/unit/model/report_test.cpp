#include "lib/model/report/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace ckpt;
using namespace ckpt::formats;
using namespace ckpt::model;

TEST_CASE("report: no name can end the data's script element") {
  tensor::Catalog catalog;
  catalog.format = "<!--<script>";
  catalog.root = "</script>";
  catalog.tensors.resize(1);
  catalog.tensors[0].key = "</ScRiPt><<\xff\x01\xe2\x80\xa8";
  catalog.objects.resize(1);
  catalog.objects[0].key = "</script>";
  const tensor::Tensor* tensors[] = {&catalog.tensors[0]};
  model::FileUsage file;
  file.path = "<b>";
  Report report;
  report.catalog = &catalog;
  report.tensors = tensors;
  report.files = {&file, 1};
  report.version = "<!--1";
  std::string page;
  REQUIRE(write_report(report, [&](std::string_view text) -> Result<void> {
    page += text;
    return {};
  }));
  const std::string begin = "id=\"data\">";
  const size_t from = page.find(begin) + begin.size(), end = page.find("</script>", from);
  const std::string data = page.substr(from, end - from);
  CHECK(data.find('<') == std::string::npos);
  auto json = nlohmann::json::parse(data);
  CHECK(json["path"] == "</script>");
  CHECK(json["version"] == "<!--1");
  CHECK(json["objects"][0][0] == "</script>");
  CHECK(json["files"][0][0] == "<b>");
  for (const char* mark : {"@BODY@", "@CSS@", "@JS@"}) {
    CHECK(kCheckpointPage.find(mark) == std::string_view::npos);
    CHECK(kImagePage.find(mark) == std::string_view::npos);
  }
  CHECK(page.find("@DATA@") == std::string::npos);
}

TEST_CASE("report: a page that cannot be written is an error") {
  tensor::Catalog catalog;
  Report report;
  report.catalog = &catalog;
  auto done =
      write_report(report, [](std::string_view) -> Result<void> { return fail(Code::kNoRoom, "page", "full"); });
  REQUIRE(!done);
  CHECK(done.error().code == Code::kNoRoom);
}
