#include <doctest/doctest.h>

#include "lib/remote/backend.h"
#include "lib/remote/md5.h"
#include "lib/remote/part_sizes.h"
#include "lib/remote/s3_answers.h"
#include "lib/remote/upload_journal.h"
#include "lib/remote/url.h"

using namespace ckpt;
using namespace ckpt::remote;

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

/// Parts that lie one behind another, and are found by every offset at their edges.
void check_tiling(const PartSizes& sizes, unsigned parts) {
  for (unsigned part = 0; part < parts; ++part) {
    REQUIRE(sizes.begin(part) == (part == 0 ? 0 : sizes.end(part - 1)));
    REQUIRE(sizes.end(part) > sizes.begin(part));
    REQUIRE(sizes.part_at(sizes.begin(part)).value() == part);
    REQUIRE(sizes.part_at(sizes.end(part) - 1).value() == part);
  }
}

}  // namespace

TEST_CASE("parts of an upload: 10,000 suffice, none is too small, what needs larger ones is refused") {
  for (uint64_t total :
       {uint64_t{1}, PartSizes::kPart - 1, PartSizes::kPart, PartSizes::kPart + 1, 79 * kGiB, 300 * kGiB}) {
    const PartSizes sizes = PartSizes::of(total).value();
    const unsigned parts = sizes.part_at(total - 1).value() + 1;
    CHECK(parts <= WritableBackend::kMostParts);
    check_tiling(sizes, parts);
    CHECK(sizes.end(parts - 1) == total);
    if (parts > 1) CHECK(sizes.end(0) >= WritableBackend::kSmallestPart);
  }
  CHECK(PartSizes::of(1000 * kGiB).error().code == Code::kNoRoom);
}

TEST_CASE("parts of an upload: those of a file whose size is not known grow, up to a bound") {
  const PartSizes sizes = PartSizes::of(std::nullopt).value();
  check_tiling(sizes, WritableBackend::kMostParts);
  CHECK(sizes.end(0) == PartSizes::kPart);
  CHECK(sizes.end(WritableBackend::kMostParts - 1) > 250 * kGiB);
  CHECK(sizes.part_at(sizes.end(WritableBackend::kMostParts - 1)).error().code == Code::kNoRoom);
}

TEST_CASE("ETags: of bytes, and of an object in parts") {
  const auto md5 = md5_of(as_bytes(std::string_view("abc")));
  REQUIRE(md5);
  CHECK(hex(*md5) == "900150983cd24fb0d6963f7d28e17f72");
  CHECK(base64(*md5) == "kAFQmDzST7DWlj99KOF/cg==");
  CHECK(looks_like_md5(hex(*md5)));
  CHECK(looks_like_md5(hex(*md5) + "-12"));
  for (const char* other :
       {"", "900150983cd24fb0d6963f7d28e17f7", "900150983CD24FB0D6963F7D28E17F72", "CKih16GjycICEAE="})
    CHECK_FALSE(looks_like_md5(other));
  CHECK_FALSE(looks_like_md5(hex(*md5) + "-"));
  CHECK_FALSE(looks_like_md5(hex(*md5) + "-1x"));
  const std::string parts[] = {"\"900150983cd24fb0d6963f7d28e17f72\"", "900150983cd24fb0d6963f7d28e17f72"};
  CHECK(etag_of_parts(parts) == "043a916d6cfeecedf5e04f0312ba762d-2");
  const std::string odd[] = {"CKih16GjycICEAE="};
  CHECK(etag_of_parts(odd).empty());
}

TEST_CASE("answers of S3 to uploads: identifiers, completions, and an error in the place of one") {
  CHECK(parse_upload_id("<InitiateMultipartUploadResult xmlns=\"x\"><Key>k</Key><UploadId>a&amp;b</UploadId>"
                        "</InitiateMultipartUploadResult>")
            .value() == "a&b");
  CHECK(
      parse_completed("<CompleteMultipartUploadResult><ETag>\"x-2\"</ETag></CompleteMultipartUploadResult>").value() ==
      "\"x-2\"");
  const std::string whole = "<InitiateMultipartUploadResult><UploadId>abc</UploadId></InitiateMultipartUploadResult>";
  for (size_t end = 0; end < whole.size(); ++end) CHECK_FALSE(parse_upload_id(whole.substr(0, end)));
  CHECK_FALSE(parse_upload_id("<InitiateMultipartUploadResult><UploadId/></InitiateMultipartUploadResult>"));
  CHECK_FALSE(parse_completed("<Error><Code>InternalError</Code></Error>"));
  const std::string parts[] = {"\"a\"", "b<&"};
  CHECK(completion_document(parts) ==
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>b&lt;&amp;</ETag></Part></CompleteMultipartUpload>");
}

TEST_CASE("answers of S3 to uploads: the parts that are there, page by page, none of which is missing") {
  const std::string first =
      "<ListPartsResult><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part><Part><ETag>b</ETag><PartNumber>2"
      "</PartNumber></Part><IsTruncated>true</IsTruncated></ListPartsResult>";
  const S3Parts page = parse_parts(first, 0).value();
  CHECK(page.etags == std::vector<std::string>{"\"a\"", "b"});
  CHECK(page.next == 2);
  CHECK_FALSE(parse_parts(first, 2));
  CHECK_FALSE(parse_parts("<ListPartsResult><Part><PartNumber>2</PartNumber></Part></ListPartsResult>", 0));
  CHECK_FALSE(parse_parts("<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>", 0));
  CHECK(parse_parts("<ListPartsResult/>", 7).value().etags.empty());
  CHECK(parse_parts("<ListPartsOutput><Part><PartNumber>1</PartNumber></Part></ListPartsOutput>", 0).value().next == 0);
  CHECK_FALSE(parse_parts("<Error/>", 0));
  for (size_t end = 0; end < first.size(); ++end) CHECK_FALSE(parse_parts(first.substr(0, end), 0));
}

TEST_CASE("journals of uploads: what was written is read, and nothing else") {
  UploadJournal journal;
  journal.plan = "p";
  journal.files = {{"a/b", 7, "u\"p", {"x", "y"}}, {"c", 0, "", {}}};
  const std::string text = to_json(journal);
  const UploadJournal again = parse_upload_journal(text, "").value();
  CHECK(again.plan == "p");
  REQUIRE(again.files.size() == 2);
  CHECK((again.files[0].name == "a/b" && again.files[0].size == 7 && again.files[0].upload == "u\"p"));
  CHECK(again.files[0].parts == std::vector<std::string>{"x", "y"});
  for (size_t end = 0; end + 1 < text.size(); ++end) CHECK_FALSE(parse_upload_journal(text.substr(0, end), ""));
  for (const char* other :
       {"[]", R"({"schema":"ckpt.upload/1","plan":"p"})", R"({"schema":"ckpt.upload/1","plan":"p","files":[1]})",
        R"({"schema":"ckpt.upload/1","plan":"p","files":[{"name":"a","size":-1,"upload":"u","parts":[]}]})",
        R"({"schema":"ckpt.upload/1","plan":"p","files":[{"name":"a","size":1,"upload":"u","parts":[3]}]})",
        R"({"schema":"ckpt.upload/2","plan":"p","files":[]})"})
    CHECK_FALSE(parse_upload_journal(other, ""));
}

TEST_CASE("URLs: beside which others may lie") {
  auto beside = [](const std::string& url) { return url.substr(0, last_part(url)); };
  CHECK(beside("s3://b/x/y") == "s3://b/x/");
  CHECK(beside("s3://b/x") == "s3://b/");
  CHECK(beside("s3://b").empty());
  CHECK(beside("cmd:/bin/prog r:a/b") == "cmd:/bin/prog r:a/");
  CHECK(beside("cmd:/bin/prog a").empty());
}

TEST_CASE("URLs: which one lies in which") {
  CHECK(lies_within("s3://b/x", "s3://b/x"));
  CHECK(lies_within("s3://b/x/", "s3://b/x"));
  CHECK(lies_within("s3://b/x/y", "s3://b/x//"));
  CHECK_FALSE(lies_within("s3://b/xy", "s3://b/x"));
  CHECK_FALSE(lies_within("s3://b/x", "s3://b/x/y"));
}
