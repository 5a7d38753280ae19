#include "plugins/mpi/transport.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "lib/base/linkage.h"
#include "plugins/mpi/api.h"

namespace ckpt::mpi {

namespace {

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(const ckpt_mpi& mpi) : mpi_(mpi) {}
  ~MpiTransport() override {
    if (started_) mpi_.finish();
  }

  Result<void> start() {
    CKPT_TRY(check(mpi_.start(&rank_, &size_), "MPI cannot be started"));
    started_ = true;
    return {};
  }

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return size_; }

  Result<Request> send(uint32_t to, uint32_t tag, ByteSpan data) override {
    void* request = nullptr;
    CKPT_TRY(check(mpi_.send(to, tag, data.data(), static_cast<uint32_t>(data.size()), &request), "cannot send"));
    return reinterpret_cast<Request>(request);
  }

  Result<Request> receive(uint32_t from, uint32_t tag, MutableByteSpan into) override {
    void* request = nullptr;
    CKPT_TRY(
        check(mpi_.receive(from, tag, into.data(), static_cast<uint32_t>(into.size()), &request), "cannot receive"));
    return reinterpret_cast<Request>(request);
  }

  Result<void> wait(Request request) override {
    return check(mpi_.wait(reinterpret_cast<void*>(request)), "a message was lost");
  }

  Result<std::vector<std::string>> all_gather(const std::string& mine) override {
    if (mine.size() > std::numeric_limits<int>::max()) return fail(Code::kUnsupported, "", "too much for one message");
    CKPT_TRY_ASSIGN(std::vector<std::string> out, gather_heads(mine));
    std::vector<uint32_t> rests;
    uint64_t total = 0;
    for (const std::string& text : out) {
      rests.push_back(static_cast<uint32_t>(text.size() - std::min(text.size(), kHeadBytes)));
      total += rests.back();
    }
    if (total == 0) return out;
    std::string all(total, 0);
    const size_t begin = std::min(mine.size(), kHeadBytes);
    CKPT_TRY(check(mpi_.gather(mine.data() + begin, rests[rank_], all.data(), rests.data()), "cannot gather"));
    size_t at = 0;
    for (uint32_t rank = 0; rank < size_; at += rests[rank++])
      if (rests[rank] != 0) all.copy(out[rank].data() + kHeadBytes, rests[rank], at);
    return out;
  }

 private:
  /// What a rank says in most steps fits into this: then one round trip is enough, while trees stand still.
  static constexpr size_t kHeadBytes = 508;
  static constexpr uint32_t kBlockBytes = sizeof(uint32_t) + kHeadBytes;

  /// What each gives, in its true length: its first kHeadBytes, and zeros for the rest.
  Result<std::vector<std::string>> gather_heads(const std::string& mine) const {
    const auto bytes = static_cast<uint32_t>(mine.size());
    std::string block(kBlockBytes, 0), all(size_t{kBlockBytes} * size_, 0);
    std::memcpy(block.data(), &bytes, sizeof bytes);
    mine.copy(block.data() + sizeof bytes, kHeadBytes);
    const std::vector<uint32_t> sizes(size_, kBlockBytes);
    CKPT_TRY(check(mpi_.gather(block.data(), kBlockBytes, all.data(), sizes.data()), "cannot gather"));
    std::vector<std::string> out(size_);
    for (uint32_t rank = 0; rank < size_; ++rank) {
      uint32_t size = 0;
      const char* at = all.data() + size_t{kBlockBytes} * rank;
      std::memcpy(&size, at, sizeof size);
      out[rank].assign(at + sizeof size, std::min<size_t>(size, kHeadBytes));
      out[rank].resize(size);
    }
    return out;
  }

  Result<void> check(int error, const char* what) const {
    if (error == 0) return {};
    std::array<char, 512> text{};
    mpi_.describe(error, text.data(), text.size());
    return fail(Code::kIo, kSubject, std::string(what) + ": " + text.data());
  }

  const ckpt_mpi& mpi_;
  bool started_ = false;
  uint32_t rank_ = 0, size_ = 0;
};

/// By the names of their ABIs: Open MPI's since 4.0 and until 5; the common one of MPICH's kin, and Debian's name for
/// it.
std::vector<const char*> libraries_of(Kind kind) {
  return kind == Kind::kOpenMpi ? std::vector{"libmpi.so.40"} : std::vector{"libmpich.so.12", "libmpi.so.12"};
}

}  // namespace

std::string plugin_name(Kind kind) { return kind == Kind::kOpenMpi ? "libckpt-openmpi.so" : "libckpt-mpich.so"; }

Result<std::unique_ptr<Transport>> start(Kind kind, const std::string& plugin) {
  void* library = nullptr;
  for (const char* name : libraries_of(kind)) {
    CKPT_TRY(check_loads_libraries(name));
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  }
  if (library == nullptr) return fail(Code::kUnsupported, libraries_of(kind).front(), "cannot be loaded");
  void* ours = ::dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto interface =
      ours == nullptr ? nullptr : reinterpret_cast<decltype(&ckpt_mpi_interface)>(::dlsym(ours, "ckpt_mpi_interface"));
  if (interface == nullptr || interface()->version != CKPT_MPI_VERSION) {
    const char* why = ::dlerror();
    return fail(Code::kUnsupported, plugin, std::string("cannot be used: ") + (why == nullptr ? "its version" : why));
  }
  auto out = std::make_unique<MpiTransport>(*interface());
  CKPT_TRY(out->start());
  return std::unique_ptr<Transport>(std::move(out));
}

}  // namespace ckpt::mpi
