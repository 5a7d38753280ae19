#include "lib/remote/credentials.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/base/io.h"

namespace ckpt::remote {

namespace {

constexpr uint64_t kMaxProfile = 1 << 20;

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return "";
}

std::string trim(std::string text) {
  text.erase(0, text.find_first_not_of(" \t\r"));
  text.erase(text.find_last_not_of(" \t\r") + 1);
  return text;
}

std::string profile_file(const char* variable, const char* name) {
  const std::string set = env(variable);
  return set.empty() ? env("HOME") + "/.aws/" + name : set;
}

std::map<std::string, std::string> profile_of(const std::string& path, const std::string& section) {
  auto text = io::read_file(path, kMaxProfile);
  return text ? parse_profile(*text, section) : std::map<std::string, std::string>();
}

/// "2026-01-31T12:00:00Z"; 0: it is no such text.
std::time_t parse_time(const std::string& text) {
  std::tm utc{};
  return ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc) == nullptr ? 0 : ::timegm(&utc);
}

AwsCredentials parse_role(const std::string& text) {
  AwsCredentials out;
  const auto doc = nlohmann::json::parse(text, nullptr, false);
  if (!doc.is_object()) return out;
  auto member = [&](const char* name) {
    auto found = doc.find(name);
    return found != doc.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  out.key_id = member("AccessKeyId"), out.secret = member("SecretAccessKey"), out.session_token = member("Token");
  out.expires = parse_time(member("Expiration"));
  return out;
}

/// The role of a container (ECS, EKS): the environment says where to ask.
AwsCredentials container_role(HttpClient& client) {
  const std::string relative = env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
                    full = env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) return {};
  std::string token = env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); token.empty() && !file.empty()) {
    if (auto text = io::read_file(file, kMaxProfile)) token = trim(*text);
  }
  HttpRequest request;
  request.url = relative.empty() ? full : "http://169.254.170.2" + relative;
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  auto answer = client.send([&] { return Result<HttpRequest>(request); });
  return answer && answer->success() ? parse_role(answer->body) : AwsCredentials();
}

/// The role of an instance (EC2), by version 2 of its metadata service.
AwsCredentials instance_role_of(HttpClient& client) {
  const std::string base = first_of({env("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "http://169.254.169.254"}) + "/latest/";
  HttpRequest ask;
  ask.method = "PUT", ask.url = base + "api/token", ask.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"};
  auto token = client.send([&] { return Result<HttpRequest>(ask); });
  if (!token || !token->success()) return {};
  auto get = [&](const std::string& path) {
    HttpRequest request;
    request.url = base + path, request.headers = {"X-aws-ec2-metadata-token: " + token->body};
    return client.send([&] { return Result<HttpRequest>(request); });
  };
  auto role = get("meta-data/iam/security-credentials/");
  if (!role || !role->success()) return {};
  auto answer = get("meta-data/iam/security-credentials/" + trim(role->body.substr(0, role->body.find('\n'))));
  return answer && answer->success() ? parse_role(answer->body) : AwsCredentials();
}

Result<AwsCredentials> role(bool instance) {
  if (env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").empty() && env("AWS_CONTAINER_CREDENTIALS_FULL_URI").empty() &&
      !instance)
    return AwsCredentials();
  HttpClient::Options options;
  options.brief = true;
  CKPT_TRY_ASSIGN(auto client, HttpClient::make(options));
  AwsCredentials out = container_role(*client);
  if (out.anonymous() && instance) out = instance_role_of(*client);
  return out;
}

}  // namespace

std::map<std::string, std::string> parse_profile(const std::string& text, const std::string& section) {
  std::map<std::string, std::string> out;
  std::istringstream lines(text);
  bool inside = false;
  std::string above;
  for (std::string line; std::getline(lines, line);) {
    const bool indented = !line.empty() && (line[0] == ' ' || line[0] == '\t');  // a value of several lines
    line = trim(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      inside = trim(line.substr(1, line.find(']') - 1)) == section;
    } else if (const size_t equals = line.find('='); inside && equals != std::string::npos) {
      const std::string name = trim(line.substr(0, equals));
      out[indented ? above + "." + name : name] = trim(line.substr(equals + 1));
      if (!indented) above = name;
    }
  }
  return out;
}

Result<S3Settings> find_s3_settings(bool instance_role) {
  const std::string asked = first_of({env("AWS_PROFILE"), env("AWS_DEFAULT_PROFILE")}),
                    profile = first_of({asked, "default"});
  auto keys = profile_of(profile_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile);
  auto config =
      profile_of(profile_file("AWS_CONFIG_FILE", "config"), profile == "default" ? profile : "profile " + profile);
  if (!asked.empty() && keys.empty() && config.empty())
    return fail(Code::kUsage, asked, "is no profile of the AWS configuration files");
  S3Settings out;
  out.region = first_of({env("AWS_REGION"), env("AWS_DEFAULT_REGION"), config["region"], "us-east-1"});
  out.endpoint = first_of({env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL"), config["endpoint_url"]});
  out.host_style = config["s3.addressing_style"] == "virtual";
  out.path_style = config["s3.addressing_style"] == "path";
  AwsCredentials& who = out.credentials;
  if (!env("AWS_ACCESS_KEY_ID").empty()) {
    who = {env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"), env("AWS_SESSION_TOKEN"), 0};
  } else {
    for (auto* values : {&keys, &config}) {
      if (!who.anonymous()) break;
      who = {(*values)["aws_access_key_id"], (*values)["aws_secret_access_key"], (*values)["aws_session_token"], 0};
    }
  }
  if (who.anonymous()) {
    CKPT_TRY_ASSIGN(who, role(instance_role && out.endpoint.empty() && env("AWS_EC2_METADATA_DISABLED") != "true"));
  }
  return out;
}

Result<S3Settings> find_google_settings() {
  CKPT_TRY_ASSIGN(S3Settings out, find_s3_settings(false));
  const std::string id = env("GS_ACCESS_KEY_ID");
  if (!id.empty()) out.credentials = {id, env("GS_SECRET_ACCESS_KEY"), "", 0};
  out.endpoint = first_of({env("GS_ENDPOINT_URL"), "https://storage.googleapis.com"});
  out.region = "auto";
  out.host_style = false;
  return out;
}

}  // namespace ckpt::remote
