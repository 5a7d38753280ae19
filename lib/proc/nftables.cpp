#include "lib/proc/nftables.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include "lib/base/linkage.h"

namespace ckpt::proc {

namespace {

/// NFT_CTX_OUTPUT_NUMERIC_ALL of nftables/libnftables.h: protocols, priorities, symbols and times as numbers.
constexpr unsigned kNumbers = 0xf << 7;

}  // namespace

Result<std::unique_ptr<Nftables>> Nftables::open() {
  CKPT_TRY(check_loads_libraries("libnftables.so.1"));
  auto out = std::make_unique<Nftables>();
  out->alone_.submit([&] { return load(out.get()); });
  CKPT_TRY(out->alone_.finish());
  return out;
}

Nftables::~Nftables() {
  alone_.submit([this] {
    if (context_ != nullptr) free_(context_);
    if (library_ != nullptr) ::dlclose(library_);
    return Result<void>();
  });
  (void)alone_.finish();
}

std::optional<std::string> Nftables::run_here(const std::string& commands) {
  if (run_(context_, commands.c_str()) == 0) return std::nullopt;
  const std::string text = error_(context_);
  return text.substr(0, text.find('\n'));
}

std::optional<std::string> Nftables::run(const std::string& commands) {
  std::optional<std::string> answer;
  alone_.submit([&] {
    answer = run_here(commands);
    return Result<void>();
  });
  (void)alone_.finish();
  return answer;
}

Result<std::string> Nftables::list() {
  std::string out;
  alone_.submit([&]() -> Result<void> {
    // The library's own buffer, which keeps what was printed before where nothing is.
    if (auto* earlier = const_cast<char*>(output_(context_)); earlier != nullptr && *earlier != 0) *earlier = 0;
    if (auto answer = run_here("list ruleset")) return fail(Code::kUnsupported, "nftables", std::move(*answer));
    if (const char* text = output_(context_); text != nullptr) out = text;
    return {};
  });
  CKPT_TRY(alone_.finish());
  return out;
}

template <class F>
bool Nftables::find(const char* name, F*& out) {
  out = reinterpret_cast<F*>(::dlsym(library_, name));
  return out != nullptr;
}

Result<void> Nftables::load(Nftables* out) {
  constexpr unsigned kAfterStreams = 3;
  if (::unshare(CLONE_FILES) != 0 || ::close_range(kAfterStreams, ~0u, 0) != 0)
    return sys_error("nftables", "cannot have descriptors of its own");
  out->library_ = ::dlopen("libnftables.so.1", RTLD_NOW | RTLD_LOCAL);
  if (out->library_ == nullptr) {
    return Error(Code::kUnsupported, "libnftables.so.1", "cannot be loaded, and so nothing be done with nftables")
        .with_hint("the Debian package is libnftables1");
  }
  const bool complete =
      out->find("nft_ctx_new", out->create_) && out->find("nft_ctx_free", out->free_) &&
      out->find("nft_run_cmd_from_buffer", out->run_) && out->find("nft_ctx_buffer_error", out->buffer_error_) &&
      out->find("nft_ctx_buffer_output", out->buffer_output_) && out->find("nft_ctx_get_error_buffer", out->error_) &&
      out->find("nft_ctx_get_output_buffer", out->output_) &&
      out->find("nft_ctx_output_set_flags", out->set_format_);
  if (!complete) return Error(Code::kUnsupported, "libnftables.so.1", "lacks a function");
  out->context_ = out->create_(0);
  // What it says is for ckpt alone.
  if (out->context_ == nullptr || out->buffer_error_(out->context_) != 0 || out->buffer_output_(out->context_) != 0)
    return Error(Code::kUnsupported, "nftables", "cannot be used");
  out->set_format_(out->context_, kNumbers);
  return {};
}

}  // namespace ckpt::proc
