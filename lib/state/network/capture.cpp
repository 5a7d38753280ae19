#include "lib/state/network/capture.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <thread>

#include "lib/base/threads.h"
#include "lib/state/network/content.h"
#include "lib/state/network/filters.h"
#include "lib/state/network/loopback.h"
#include "lib/state/network/settings.h"

namespace ckpt::capture {

namespace {

/// Runs `work` in a thread that is in a new network namespace, which ends with it.
Result<void> in_new_namespace(const std::function<Result<void>()>& work) {
  Result<void> out;
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::unshare(CLONE_NEWNET) != 0) out = sys_error("network namespace", "cannot be made");
    else out = work();
  });
  if (!started) return no_thread("");
  apart.join();
  return out;
}

struct NewNamespace {
  state::Settings settings;
  store::Network content;
};

/// What a new one has, with loopback up where `loopback_up`.
Result<NewNamespace> look_at_new_namespace(bool loopback_up) {
  NewNamespace out;
  CKPT_TRY(in_new_namespace([&]() -> Result<void> {
    out.settings = state::read_settings();
    if (loopback_up) CKPT_TRY(state::raise_loopback());
    CKPT_TRY_ASSIGN(out.content, state::read_content());
    return {};
  }));
  return out;
}

/// The kernel puts links of some of its modules into every namespace: one that nobody uses is none of ours.
void leave_out_unused(const store::Network& fresh, store::Network& network) {
  std::erase_if(network.beyond, [&](const std::string& what) {
    return what.starts_with("interface ") && std::count(fresh.beyond.begin(), fresh.beyond.end(), what) != 0;
  });
}

/// A part of it alone makes no sense.
void leave_out_content(store::Network& network) {
  store::Network out;
  out.loopback_up = network.loopback_up;
  out.settings = std::move(network.settings), out.beyond = std::move(network.beyond);
  network = std::move(out);
}

bool is_as_new(const store::Network& fresh, const store::Network& network) {
  return fresh.links == network.links && fresh.addresses == network.addresses && fresh.routes == network.routes &&
         fresh.rules == network.rules && fresh.neighbours == network.neighbours;
}

/// What is counted down meanwhile: how long elements of sets stay.
std::string without_times(const std::string& filters) {
  constexpr std::string_view kLeft = " expires ";
  std::string out;
  for (size_t at = 0; at < filters.size();) {
    const size_t next = std::min(filters.find(kLeft, at), filters.size());
    out += filters.substr(at, next - at);
    at = next == filters.size() ? next : std::min(filters.find_first_of(" ,\n", next + kLeft.size()), filters.size());
  }
  return out;
}

Result<void> compare_filters(const std::string& wanted) {
  std::vector<std::string> ignored;
  CKPT_TRY_ASSIGN(const std::string made, state::read_filters(ignored));
  if (without_times(made) != without_times(wanted))
    return fail(Code::kUnsupported, "nftables", "has rules that come back as others");
  return {};
}

/// All that restore will do, where it harms nobody. The other ends of veths are made in a further new namespace.
Result<void> try_to_make(const store::Network& network) {
  return in_new_namespace([&]() -> Result<void> {
    CKPT_TRY(state::validate_network(network));
    CKPT_TRY_ASSIGN(state::Outside outside, state::Outside::here());
    if (::unshare(CLONE_NEWNET) != 0) return sys_error("network namespace", "cannot be made");
    std::map<std::string, state::VethEnd> ends;
    for (const store::NetworkLink& link : network.links) {
      if (state::leads_outside(link)) ends[link.name].name = fmt::format("ckpt{}", link.index);
    }
    return state::make_network(network, ends, &outside, [&] { return compare_filters(network.filters); });
  });
}

}  // namespace

Result<store::Network> take_network() {
  CKPT_TRY_ASSIGN(store::Network out, state::read_content());
  for (const store::NetworkLink& link : out.links) {
    if (link.kind.empty()) out.loopback_up = (link.flags & IFF_UP) != 0;
  }
  CKPT_TRY_ASSIGN(const NewNamespace fresh, look_at_new_namespace(out.loopback_up));
  leave_out_unused(fresh.content, out);
  CKPT_TRY_ASSIGN(out.filters, state::read_filters(out.beyond));
  out.settings = state::settings_to_make(state::read_settings(), fresh.settings);
  if (is_as_new(fresh.content, out)) {
    std::string filters = std::move(out.filters);
    leave_out_content(out);
    out.filters = std::move(filters);
    if (out.filters.empty()) return out;
  }
  if (out.beyond.empty()) {
    if (auto possible = try_to_make(out); !possible)
      out.beyond.push_back(fmt::format("what cannot be made again ({})", possible.error().text()));
  }
  if (!out.beyond.empty()) leave_out_content(out);
  return out;
}

}  // namespace ckpt::capture
