#include <doctest/doctest.h>

#include "lib/remote/credentials.h"
#include "lib/remote/http_listing.h"
#include "lib/remote/pacer.h"
#include "lib/remote/s3_answers.h"
#include "lib/remote/url.h"

using namespace ckpt;
using namespace ckpt::remote;

TEST_CASE("URLs: bucket and key, host and path, and what is none") {
  auto s3 = parse_url("s3://bucket/a b");
  CHECK(!s3);
  s3 = parse_url("s3://bucket/run=1/iter_+%41/");
  REQUIRE(s3);
  CHECK(s3->bucket == "bucket");
  CHECK(s3->key == "run=1/iter_+%41/");
  CHECK(s3->name() == "iter_+%41");
  auto command = parse_url("cmd:rclone --fast  remote:bucket/run=1");
  REQUIRE(command);
  CHECK(command->words == std::vector<std::string>{"rclone", "--fast"});
  CHECK(command->key == "remote:bucket/run=1");
  CHECK(command->name() == "run=1");
  for (const char* wrong : {"cmd:", "cmd: ", "cmd:a", "cmd:a -b", "cmd:a b ", "cmd:a\tb c"}) CHECK(!parse_url(wrong));
  auto http = parse_url("https://host:8443/a%20b/model.safetensors?X-Sig=1");
  REQUIRE(http);
  CHECK(http->origin == "https://host:8443");
  CHECK(http->path == "/a%20b/model.safetensors");
  CHECK(http->query == "X-Sig=1");
  CHECK(http->name() == "model.safetensors");
  CHECK(parse_url("http://host")->path == "/");
  CHECK(parse_url("gs://bucket")->scheme == Url::Scheme::kGoogle);
  for (const char* wrong :
       {"http://", "s3://", "s3:///key", "s3://b^d/key", "ftp://host/x", "https://user:word7@host/x"}) {
    auto url = parse_url(wrong);
    REQUIRE(!url);
    CHECK(url.error().code == Code::kUsage);
    CHECK(url.error().text().find("word7") == std::string::npos);
  }
  CHECK(percent_encode("a/b c+\xc3\xa9~", true) == "a/b%20c%2B%C3%A9~");
  CHECK(percent_decode("a%2fb%zz%4") == "a/b%zz%4");
}

TEST_CASE("S3: pages of a list, errors, and answers that are none") {
  auto page = parse_list(R"(<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
    <IsTruncated>true</IsTruncated><NextContinuationToken>t/1=</NextContinuationToken>
    <Contents><Key>a&amp;b/c</Key><Size>12</Size><ETag>&quot;e1&quot;</ETag></Contents>
    <Contents><Key>d</Key><Size>0</Size><ETag>e2</ETag></Contents></ListBucketResult>)");
  REQUIRE(page);
  REQUIRE(page->objects.size() == 2);
  CHECK(page->objects[0].name == "a&b/c");
  CHECK(page->objects[0].size == 12);
  CHECK(page->objects[0].etag == "\"e1\"");
  CHECK(page->objects[1].etag == "\"e2\"");
  CHECK(page->next == "t/1=");
  CHECK(parse_list("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")->next.empty());
  for (const char* wrong :
       {"", "<html></html>", "<ListBucketResult><Contents>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<!DOCTYPE x [<!ENTITY a \"b\">]><ListBucketResult><Contents><Key>&a;</Key></Contents></ListBucketResult>"}) {
    CHECK(!parse_list(wrong));
  }
  CHECK(parse_s3_error("<Error><Code>NoSuchKey</Code><Message>It is not there.</Message></Error>") ==
        "NoSuchKey: It is not there.");
  CHECK(parse_s3_error("<html>").empty());
}

TEST_CASE("HTTP: what servers list of a folder") {
  const auto links =
      parse_index(R"(<a href="../">up</a><a href="iter%201/">x</a><A HREF='?C=N'>y</A><a href="a&amp;b.bin">z</a>
    <a href="/etc/passwd">no</a><a href="https://host/x">no</a><a href="./c">c</a><a href="c">again</a><a href=")");
  REQUIRE(links.size() == 3);
  CHECK(links[0].name == "iter 1");
  CHECK(links[0].folder);
  CHECK(links[1].name == "a&b.bin");
  CHECK(links[2].name == "c");
  CHECK(parse_index(R"(<a href="a&amp;amp;b">)")[0].name == "a&amp;b");
  std::string many = "<a href=\"";
  for (int i = 0; i < 500'000; ++i) many += "&amp;";  // quadratic work would take minutes
  CHECK(parse_index(many + "\">")[0].name == std::string(500'000, '&'));
  const auto json =
      parse_index(R"([{"name":"d","type":"directory"},{"name":"f","type":"file","size":7},{"name":"../g"},3])");
  REQUIRE(json.size() == 2);
  CHECK(json[1].size == 7);
  CHECK(repository_query("/o/n/resolve/main/sub/") == "/api/models/o/n/tree/main/sub?recursive=true");
  CHECK(!repository_query("/o/n/main"));
  const auto files = parse_repository(R"([{"type":"file","path":"a/b","size":5},{"type":"directory","path":"a"}])");
  REQUIRE(files);
  REQUIRE(files->size() == 1);
  CHECK(files->front().path == "a/b");
  CHECK(!parse_repository("<html>"));
  CHECK(parse_weight_map(R"({"weight_map":{"x":"f2","y":"f1","z":"f2","w":3}})") ==
        std::vector<std::string>{"f1", "f2"});
  CHECK(parse_weight_map("[1]").empty());
}

TEST_CASE("bandwidth: how it is said, and when bytes were allowed to pass") {
  CHECK(parse_bandwidth("1").value() == 1);
  CHECK(parse_bandwidth("100M").value() == 100 << 20);
  for (const char* wrong : {"", "0", "-1", "M", "1MB", "1.5M", "1 M", "99999999999T"})
    CHECK_FALSE(parse_bandwidth(wrong));
  Pacer pacer(1000);
  const Pacer::Clock::time_point begin{std::chrono::hours(1)};
  using std::chrono::milliseconds;
  CHECK(pacer.allowed(500, begin) == begin + milliseconds(500));
  CHECK(pacer.allowed(1000, begin) == begin + milliseconds(1500));
  const auto late = begin + milliseconds(9000);
  CHECK(pacer.allowed(100, late) == late + milliseconds(100));
}

TEST_CASE("S3: the values of one section of a profile file") {
  const std::string text =
      "[default]\naws_access_key_id = a\n# no\n[profile x]\nregion=eu-west-1\ns3 =\n  addressing_style = path\nkey = "
      "b=c\n";
  CHECK(parse_profile(text, "default") == std::map<std::string, std::string>{{"aws_access_key_id", "a"}});
  auto x = parse_profile(text, "profile x");
  CHECK(x["region"] == "eu-west-1");
  CHECK(x["key"] == "b=c");
  CHECK(x.count("addressing_style") == 0);
  CHECK(x["s3.addressing_style"] == "path");
  CHECK(parse_profile(text, "profile y").empty());
}
