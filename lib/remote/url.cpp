#include "lib/remote/url.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace ckpt::remote {

namespace {

constexpr std::string_view kCommand = "cmd:";
constexpr std::string_view kSchemes[] = {"http://", "https://", "s3://", "gs://", kCommand};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

Result<Url> parse_http(Url url, size_t after_scheme) {
  const size_t slash = url.text.find_first_of("/?", after_scheme);
  url.origin = url.text.substr(0, slash);
  if (url.origin.size() == after_scheme) return fail(Code::kUsage, url.text, "names no host");
  if (url.origin.find('@') != std::string::npos)
    return Error(Code::kUsage, "the URL", "holds a user name or a password")
        .with_hint("credentials come from ~/.netrc: other users see what is on a command line");
  const size_t question = url.text.find('?', slash == std::string::npos ? url.text.size() : slash);
  if (slash != std::string::npos)
    url.path = url.text.substr(slash, question == std::string::npos ? question : question - slash);
  if (question != std::string::npos) url.query = url.text.substr(question + 1);
  if (url.path.empty()) url.path = "/";
  return url;
}

/// Words between spaces; the last one is the place.
Result<Url> parse_command(Url url) {
  url.scheme = Url::Scheme::kCommand;
  if (std::any_of(url.text.begin(), url.text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }))
    return fail(Code::kUsage, url.text, "holds a control character");
  for (size_t at = kCommand.size(); (at = url.text.find_first_not_of(' ', at)) != std::string::npos;) {
    const size_t end = std::min(url.text.find(' ', at), url.text.size());
    url.words.push_back(url.text.substr(at, end - at));
    at = end;
  }
  if (url.words.size() < 2)
    return fail(Code::kUsage, url.text, "names no program and no place: cmd:PROGRAM ARG... PLACE");
  url.key = std::move(url.words.back());
  url.words.pop_back();
  if (url.text.back() == ' ') return fail(Code::kUsage, url.text, "ends with a space");
  if (url.key[0] == '-') return fail(Code::kUsage, url.text, "ends with an option where the place is expected");
  return url;
}

}  // namespace

bool is_url(std::string_view text) {
  return std::any_of(std::begin(kSchemes), std::end(kSchemes), [&](auto s) { return text.starts_with(s); });
}

bool lies_within(std::string_view url, std::string_view folder) {
  while (!folder.empty() && folder.back() == '/') folder.remove_suffix(1);
  return url.starts_with(folder) && (url.size() == folder.size() || url[folder.size()] == '/');
}

std::string without_slashes(std::string url) {
  while (url.size() > 1 && url.back() == '/') url.pop_back();
  return url;
}

size_t last_part(std::string_view url) {
  const size_t slash = url.rfind('/');
  const size_t place = url.starts_with(kCommand) ? url.rfind(' ') : url.find("://") + 3;
  return slash == std::string_view::npos || slash < place ? 0 : slash + 1;
}

Result<Url> parse_url(const std::string& text) {
  Url url;
  url.text = text;
  if (!is_url(text))
    return fail(Code::kUsage, text, "is no URL that ckpt reads: s3://, gs://, http://, https:// or cmd:");
  if (text.starts_with(kCommand)) return parse_command(std::move(url));
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; }))
    return fail(Code::kUsage, text, "holds a space or a control character: write it as %XX");
  const size_t host = text.find("://") + 3;
  if (text.starts_with("http")) return parse_http(std::move(url), host);
  url.scheme = text.starts_with("gs") ? Url::Scheme::kGoogle : Url::Scheme::kS3;
  const size_t slash = text.find('/', host);
  url.bucket = text.substr(host, slash == std::string::npos ? slash : slash - host);
  if (slash != std::string::npos) url.key = text.substr(slash + 1);
  const bool plain = !url.bucket.empty() && std::all_of(url.bucket.begin(), url.bucket.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '.' || c == '_';
  });
  if (!plain) return fail(Code::kUsage, text, "names no bucket");
  return url;
}

std::string Url::name() const {
  std::string path_or_key = scheme == Scheme::kHttp ? percent_decode(path) : key;
  while (!path_or_key.empty() && path_or_key.back() == '/') path_or_key.pop_back();
  return path_or_key.substr(path_or_key.rfind('/') + 1);
}

std::string percent_encode(std::string_view text, bool keep_slashes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        (byte < 0x80 && std::isalnum(byte) != 0) || std::string_view("-._~").find(c) != std::string_view::npos;
    if (plain || (keep_slashes && c == '/')) {
      out += c;
    } else {
      out += '%', out += kDigits[byte >> 4], out += kDigits[byte & 15];
    }
  }
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() && text[i] == '%' ? hex_digit(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : hex_digit(text[i + 2]);
    if (low < 0) {
      out += text[i];
    } else {
      out += static_cast<char>(high * 16 + low), i += 2;
    }
  }
  return out;
}

}  // namespace ckpt::remote
