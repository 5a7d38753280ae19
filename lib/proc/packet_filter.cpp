#include "lib/proc/packet_filter.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "lib/base/linkage.h"
#include "lib/base/worker_pool.h"

namespace ckpt::proc {

/// libnftables, of which six functions are used. Its context is the netlink socket that owns a table of `flags owner`.
/// The library calls select(2) and aborts where that socket has a number of 1024 or more: it lives in a thread whose
/// table of descriptors is its own and empty.
class PacketFilter::Nftables {
 public:
  static Result<std::unique_ptr<Nftables>> open() {
    CKPT_TRY(check_loads_libraries("libnftables.so.1"));
    auto out = std::make_unique<Nftables>();
    out->alone_.submit([&] { return load(out.get()); });
    CKPT_TRY(out->alone_.finish());
    return out;
  }
  Nftables() = default;
  Nftables(const Nftables&) = delete;
  Nftables& operator=(const Nftables&) = delete;
  ~Nftables() {
    alone_.submit([this] {
      if (context_ != nullptr) free_(context_);
      if (library_ != nullptr) ::dlclose(library_);
      return Result<void>();
    });
    (void)alone_.finish();
  }

  /// What nftables answers when a command fails; nothing: it succeeded.
  std::optional<std::string> run(const std::string& commands) {
    std::optional<std::string> answer;
    alone_.submit([&] {
      if (run_(context_, commands.c_str()) == 0) return Result<void>();
      std::string text = error_(context_);
      answer = text.substr(0, text.find('\n'));
      return Result<void>();
    });
    (void)alone_.finish();
    return answer;
  }

 private:
  static Result<void> load(Nftables* out) {
    constexpr unsigned kAfterStreams = 3;
    if (::unshare(CLONE_FILES) != 0 || ::close_range(kAfterStreams, ~0u, 0) != 0)
      return sys_error("nftables", "cannot have descriptors of its own");
    out->library_ = ::dlopen("libnftables.so.1", RTLD_NOW | RTLD_LOCAL);
    if (out->library_ == nullptr) {
      return Error(Code::kUnsupported, "libnftables.so.1", "cannot be loaded, and so no packet filter be made")
          .with_hint("the Debian package is libnftables1");
    }
    bool complete =
        out->find("nft_ctx_new", out->create_) && out->find("nft_ctx_free", out->free_) &&
        out->find("nft_run_cmd_from_buffer", out->run_) && out->find("nft_ctx_buffer_error", out->buffer_error_) &&
        out->find("nft_ctx_buffer_output", out->buffer_output_) && out->find("nft_ctx_get_error_buffer", out->error_);
    if (!complete) return Error(Code::kUnsupported, "libnftables.so.1", "lacks a function");
    out->context_ = out->create_(0);
    // What it says is for ckpt alone.
    if (out->context_ == nullptr || out->buffer_error_(out->context_) != 0 || out->buffer_output_(out->context_) != 0)
      return Error(Code::kUnsupported, "nftables", "cannot be used");
    return {};
  }

  template <class F>
  bool find(const char* name, F*& out) {
    out = reinterpret_cast<F*>(::dlsym(library_, name));
    return out != nullptr;
  }

  WorkerPool alone_{1};
  void* library_ = nullptr;
  void* context_ = nullptr;
  void* (*create_)(unsigned) = nullptr;
  void (*free_)(void*) = nullptr;
  int (*run_)(void*, const char*) = nullptr;
  int (*buffer_error_)(void*) = nullptr;
  int (*buffer_output_)(void*) = nullptr;
  const char* (*error_)(void*) = nullptr;
};

namespace {

/// The name becomes part of a command.
Result<void> check_id(const std::string& id) {
  bool plain = !id.empty() && id.size() <= 64 &&
               std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  return plain ? Result<void>() : Result<void>(Error(Code::kCorrupt, id, "is no identity of an image"));
}

std::string address_and_port(const SocketName& name, bool four) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (four) {
    auto in = address_of<sockaddr_in>(name);
    return fmt::format("{} . {}", ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size()), ntohs(in.sin_port));
  }
  auto in = address_of<sockaddr_in6>(name);
  return fmt::format("{} . {}", ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size()), ntohs(in.sin6_port));
}

/// Two sets of (remote, local), and a chain for each direction that drops what is in them.
std::string rules_for(const std::vector<FilteredConnection>& connections) {
  std::string elements[2];
  for (const auto& connection : connections) {
    SocketName local = plain_name(connection.local), remote = plain_name(connection.remote);
    bool four = address_of<sockaddr>(local).sa_family == AF_INET;
    std::string& list = elements[four ? 0 : 1];
    list += (list.empty() ? "" : ", ") + address_and_port(remote, four) + " . " + address_and_port(local, four);
  }
  std::string sets, in, out;
  for (int i : {0, 1}) {
    if (elements[i].empty()) continue;
    const char *ip = i == 0 ? "ip" : "ip6", *type = i == 0 ? "ipv4_addr" : "ipv6_addr", *set = i == 0 ? "four" : "six";
    sets += fmt::format("set {} {{ type {} . inet_service . {} . inet_service; elements = {{ {} }}; }}; ", set, type,
                        type, elements[i]);
    in += fmt::format("{0} saddr . tcp sport . {0} daddr . tcp dport @{1} drop; ", ip, set);
    out += fmt::format("{0} daddr . tcp dport . {0} saddr . tcp sport @{1} drop; ", ip, set);
  }
  return fmt::format(
      "{}chain in {{ type filter hook input priority -300; {}}}; "
      "chain out {{ type filter hook output priority -300; {}}}; ",
      sets, in, out);
}

Error refused(const std::string& what, const std::string& answer) {
  return Error(Code::kUnsupported, "nftables", fmt::format("{}: {}", what, answer));
}

}  // namespace

PacketFilter::PacketFilter(std::unique_ptr<Nftables> nftables, std::string id, std::string rules)
    : nftables_(std::move(nftables)), id_(std::move(id)), rules_(std::move(rules)) {}
PacketFilter::PacketFilter(PacketFilter&&) noexcept = default;
PacketFilter::~PacketFilter() = default;

Result<PacketFilter> PacketFilter::create(const std::string& id, const std::vector<FilteredConnection>& connections) {
  CKPT_TRY(check_id(id));
  CKPT_TRY_ASSIGN(auto nftables, Nftables::open());
  std::string rules = rules_for(connections);
  // Owned: it goes when the socket of this context is closed.
  auto answer = nftables->run(fmt::format("table inet ckpt-{}-dump {{ flags owner; {} }}", id, rules));
  if (answer) return refused("cannot hold off the packets of TCP connections", *answer);
  return PacketFilter(std::move(nftables), id, std::move(rules));
}

Result<void> PacketFilter::keep() {
  auto answer = nftables_->run(fmt::format("table inet ckpt-{} {{ {} }}", id_, rules_));
  if (answer) return refused("cannot hold off the packets of TCP connections", *answer);
  return {};
}

Result<bool> remove_packet_filter(const std::string& id) {
  CKPT_TRY(check_id(id));
  CKPT_TRY_ASSIGN(auto nftables, PacketFilter::Nftables::open());
  if (nftables->run(fmt::format("list table inet ckpt-{}", id))) return false;
  auto answer = nftables->run(fmt::format("delete table inet ckpt-{}", id));
  if (answer) return refused("cannot remove the packet filter ckpt-" + id, *answer);
  return true;
}

Result<void> probe_packet_filter() {
  CKPT_TRY_ASSIGN(auto nftables, PacketFilter::Nftables::open());
  auto answer = nftables->run("table inet ckpt-probe { flags owner; }");
  if (answer) return refused("cannot make a packet filter", *answer);
  return {};
}

}  // namespace ckpt::proc
