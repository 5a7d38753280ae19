#include "lib/state/network/filters.h"

#include <fmt/format.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "lib/base/io.h"
#include "lib/proc/nftables.h"
#include "lib/proc/route_socket.h"

namespace ckpt::state {

namespace {

/// Calls visit(table, text) for each table: its first line, and all of it.
template <class Visit>
void each_table(std::string_view filters, Visit visit) {
  for (size_t begin = 0; begin < filters.size();) {
    constexpr std::string_view kEnd = "\n}\n";
    const size_t end = filters.find(kEnd, begin);
    const size_t next = end == std::string_view::npos ? filters.size() : end + kEnd.size();
    const std::string_view text = filters.substr(begin, next - begin);
    const size_t head = text.rfind("\ntable ", text.find('{'));
    visit(text.substr(head == std::string_view::npos ? 0 : head + 1), text);
    begin = next;
  }
}

bool is_own_table(std::string_view table) {
  constexpr std::string_view kOwn = "table inet ckpt-";
  return table.starts_with(kOwn);
}

/// Whether there is a table of nftables. A kernel without them has none.
Result<bool> has_tables() {
  auto socket = proc::RouteSocket::open(NETLINK_NETFILTER);
  if (!socket && socket.error().sys_errno == EPROTONOSUPPORT) return false;
  if (!socket) return std::move(socket).error();
  const proc::RouteMessage request(nfgenmsg{});
  auto told = socket->dump(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE, request.octets());
  if (told) return !told->empty();
  const bool has_none = told.error().code == Code::kUnsupported || told.error().code == Code::kNotFound;
  return has_none ? Result<bool>(false) : Result<bool>(std::move(told).error());
}

/// Of the older kind of iptables, in tables of its own.
bool has_legacy_tables() {
  constexpr uint64_t kLimit = 4096;
  for (const char* file : {"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names",
                           "/proc/thread-self/net/arp_tables_names"}) {
    auto names = io::read_file(file, kLimit);
    if (names && !names->empty()) return true;
  }
  return false;
}

}  // namespace

namespace {

bool is_in_word(char c) {
  constexpr std::string_view kOthers = "_./\\-";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || kOthers.find(c) != std::string_view::npos;
}

/// In the language of nft the word reads a file. Within quotes it is but a word, and a quote in a comment is none.
bool has_include(std::string_view filters) {
  constexpr std::string_view kWord = "include";
  bool quoted = false;
  for (size_t at = 0; at < filters.size(); ++at) {
    if (filters[at] == '"') quoted = !quoted;
    if (quoted) continue;
    if (filters[at] == '#') {
      at = std::min(filters.find('\n', at), filters.size());
      continue;
    }
    const size_t end = at + kWord.size();
    if (filters.substr(at, kWord.size()) == kWord && (at == 0 || !is_in_word(filters[at - 1])) &&
        (end >= filters.size() || !is_in_word(filters[end])))
      return true;
  }
  return false;
}

}  // namespace

std::string without_own_tables(const std::string& filters) {
  std::string out;
  each_table(filters, [&](std::string_view table, std::string_view text) {
    if (!is_own_table(table)) out += text;
  });
  return out;
}

Result<std::string> read_filters(std::vector<std::string>& beyond) {
  if (has_legacy_tables()) beyond.emplace_back("tables of iptables-legacy");
  const Result<bool> has_some = has_tables();
  if (!has_some) beyond.push_back(fmt::format("tables of nftables, perhaps ({})", has_some.error().text()));
  if (!has_some || !*has_some) return std::string();
  auto nftables = proc::Nftables::open();
  auto listed = nftables ? (*nftables)->list() : Result<std::string>(nftables.error());
  if (!listed) {
    beyond.push_back(fmt::format("tables of nftables ({})", listed.error().text()));
    return std::string();
  }
  std::string out = without_own_tables(*listed);
  each_table(out, [&](std::string_view, std::string_view text) {
    constexpr std::string_view kFlags = "\n\tflags ";
    const size_t at = text.find(kFlags);
    if (at == std::string_view::npos) return;
    const std::string_view flags = text.substr(at + kFlags.size(), text.find('\n', at + 1) - at - kFlags.size());
    if (flags.find("owner") != std::string_view::npos) beyond.emplace_back("a table of nftables with an owner");
  });
  return out;
}

Result<void> validate_filters(const std::string& filters) {
  if (filters.empty()) return {};
  const Error damaged(Code::kCorrupt, "nftables", "what the image has of it is not a list of tables");
  if (!filters.ends_with("\n}\n") || filters.find('\0') != std::string::npos || has_include(filters)) return damaged;
  bool inside = false;
  for (size_t begin = 0; begin < filters.size();) {
    const size_t end = filters.find('\n', begin);
    const std::string_view line = std::string_view(filters).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.starts_with('#')) continue;
    if (inside ? line == "}" : line.starts_with("table ") && line.ends_with("{")) inside = !inside;
    else if (!inside || !line.starts_with('\t')) return damaged;
  }
  return inside ? Result<void>(damaged) : Result<void>();
}

Result<void> make_filters(const std::string& filters) {
  if (filters.empty()) return {};
  CKPT_TRY_ASSIGN(const auto nftables, proc::Nftables::open());
  if (auto answer = nftables->run(filters))
    return fail(Code::kUnsupported, "nftables", fmt::format("the rules cannot be made again: {}", *answer));
  return {};
}

}  // namespace ckpt::state
