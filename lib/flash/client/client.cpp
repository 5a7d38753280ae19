// libckpt-flash: see ckpt_flash.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <new>

#include "lib/base/checked.h"
#include "lib/base/threads.h"
#include "lib/flash/channel.h"
#include "lib/flash/client/ckpt_flash.h"
#include "lib/flash/client/copy.h"
#include "lib/flash/client/snapshot.h"
#include "lib/flash/connect.h"
#include "lib/flash/layout.h"

namespace ckpt::flash {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

constexpr int kAnswerMs = 60'000;
constexpr int kLostStatus = CKPT_FLASH_LOST;
constexpr uint64_t kReadied = uint64_t{64} << 20;

static uint64_t now_us(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

/// The segment, mapped and shared with the agent, which is trusted: it is of the same user, or root.
struct Mapped {
  UniqueFd fd;
  Mapping memory;
  BufferLayout layout;
  std::string layout_text;
  std::thread readying;
  std::atomic<bool> stop{false};

  ~Mapped() {
    stop.store(true);
    if (readying.joinable()) readying.join();
  }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(memory.data()); }
  std::byte* buffer(uint64_t number) const {
    return memory.data() + header().buffer_offset + number * header().buffer_stride;
  }

  /// Pages of this process, too, so that the first save does not fault at each of them.
  void make_ready() {
    const uint64_t begin = header().buffer_offset;
    for (uint64_t at = begin; at < memory.size() && !stop.load(); at += kReadied) {
      const uint64_t size = std::min(kReadied, memory.size() - at);
      ::madvise(memory.data() + at, size, MADV_HUGEPAGE);
      if (::madvise(memory.data() + at, size, MADV_POPULATE_WRITE) != 0) return;
    }
  }
};

/// What a load has given out.
struct Loaded {
  ckpt_flash_loaded view{};
  Mapping memory;
  BufferLayout layout;
  std::vector<StoredObject> objects;
  std::vector<std::vector<ckpt_flash_step>> paths;
  std::vector<ckpt_flash_tensor> tensors;
  std::vector<ckpt_flash_object> object_views;
  std::vector<void*> data;
  uint64_t buffer = 0;
  bool pins = false;  ///< the agent keeps the buffer as it is for it
};

static std::vector<Step> steps_of(uint32_t count, const ckpt_flash_step* path) {
  std::vector<Step> out;
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back({static_cast<Step::Kind>(path[i].kind), path[i].name != nullptr ? path[i].name : "", path[i].number});
  }
  return out;
}

static std::vector<ckpt_flash_step> views_of(const std::vector<Step>& steps) {
  std::vector<ckpt_flash_step> out;
  for (const Step& step : steps) out.push_back({static_cast<int32_t>(step.kind), step.name.c_str(), step.number});
  return out;
}

static Result<BufferLayout> layout_of(const ckpt_flash_tensor* tensors, uint32_t count) {
  BufferLayout out;
  for (uint32_t i = 0; i < count; ++i) {
    const ckpt_flash_tensor& from = tensors[i];
    LayoutTensor to;
    to.key = from.key;
    to.dtype = from.dtype;
    to.shape.assign(from.shape, from.shape + from.dims);
    to.global_shape = to.shape;
    if (from.global_shape != nullptr) to.global_shape.assign(from.global_shape, from.global_shape + from.dims);
    to.global_offset.assign(from.dims, 0);
    if (from.global_offset != nullptr) to.global_offset.assign(from.global_offset, from.global_offset + from.dims);
    to.path = steps_of(from.steps, from.path);
    if (to.key.empty() || to.key.size() > kMostText) return fail(Code::kUsage, to.key, "is no name for a tensor");
    out.tensors.push_back(std::move(to));
  }
  CKPT_TRY(place_tensors(out));
  return out;
}

static Result<UniqueFd> sealed_copy(const std::string& text) {
  UniqueFd fd(::memfd_create("ckpt-layout", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  size_t at = 0;
  while (fd && at < text.size()) {
    const ssize_t put = ::pwrite(fd.get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (put <= 0) return sys_error("layout", "cannot be written");
    at += static_cast<size_t>(put);
  }
  if (!fd || ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return sys_error("layout", "cannot make shared memory");
  return fd;
}

}  // namespace ckpt::flash

using namespace ckpt;
using namespace ckpt::flash;

struct ckpt_flash {
  std::string directory, socket_path, error, text;
  uint32_t rank = 0, world = 1, local_world = 1;
  bool partner_copy = false;
  unsigned threads = 1;
  UniqueFd socket;
  uint64_t next_id = 0;
  std::unique_ptr<Mapped> mapped;
  std::list<Loaded> loaded;
  std::mutex talking;  ///< a snapshot says by itself that it is complete
  std::unique_ptr<Snapshot> snapshot;
  std::atomic<bool> under_way{false};  ///< a snapshot: what another thread may ask
  Result<void> snapshot_result;
  ckpt_flash_saved snapshot_saved{};
  bool writing = false;
  uint64_t buffer = 0, step = 0, began_us = 0, copied_us = 0;

  // --- the agent ---

  Result<Answer> call(Type type, Request request, const std::string& words = {}, int fd = -1, int timeout = kAnswerMs) {
    const std::lock_guard lock(talking);
    if (!socket) return sys_error(EPIPE, "agent", "is not connected");
    request.type = static_cast<uint16_t>(type);
    request.id = ++next_id;
    auto answer = ask(socket.get(), request, words, fd, timeout);
    if (!answer) socket.reset();  // what it would still say belongs to this question
    return answer;
  }
  Result<void> connect() {
    CKPT_TRY_ASSIGN(socket, connect_agent(directory, socket_path));
    Request request;
    request.rank = rank;
    request.world = world;
    request.local_world = local_world;
    request.flags = partner_copy ? kPartnerCopy : 0;
    auto said = checked(call(Type::kHello, request));
    if (!said) socket.reset();
    return said ? Result<void>() : Result<void>(said.error());
  }

  Result<void> reconnect() {
    CKPT_TRY(connect());
    writing = false;
    if (!mapped) return {};
    const auto adopted = checked(call(Type::kAdopt, {}, {}, mapped->fd.get()));
    for (Loaded& one : loaded) one.pins = false;
    return adopted ? Result<void>() : Result<void>(adopted.error());
  }

  // --- what is saved ---

  Result<void> take_segment(UniqueFd fd, const std::string& layout_text) {
    if (!fd) return fail(Code::kBug, "agent", "hands over no memory");
    struct stat st {};
    if (::fstat(fd.get(), &st) != 0 || st.st_size < static_cast<off_t>(kHeaderBytes))
      return fail(Code::kCorrupt, "agent", "hands over what is no segment");
    auto out = std::make_unique<Mapped>();
    const auto size = static_cast<size_t>(st.st_size);
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) return sys_error("segment", "cannot map");
    out->memory = Mapping(memory, size);
    out->fd = std::move(fd);
    out->layout_text = layout_text;
    CKPT_TRY_ASSIGN(out->layout, decode_layout(as_bytes(layout_text)));
    const SegmentHeader& header = out->header();
    if (std::memcmp(header.magic, kSegmentMagic, sizeof kSegmentMagic) != 0 || header.segment_bytes != size ||
        header.data_bytes != out->layout.data_bytes)
      return fail(Code::kCorrupt, "agent", "hands over a segment of another layout");
    mapped = std::move(out);
    if (!start_thread(mapped->readying, [m = mapped.get()] { m->make_ready(); })) mapped->make_ready();
    return {};
  }

  Result<void> declare(const ckpt_flash_tensor* tensors, uint32_t count, uint64_t object_bytes) {
    if (writing) return fail(Code::kUsage, "", "a save is under way");
    CKPT_TRY_ASSIGN(const BufferLayout layout, layout_of(tensors, count));
    const std::string layout_text = encode_layout(layout);
    if (mapped && mapped->layout_text == layout_text && mapped->header().objects_capacity >= object_bytes && socket)
      return {};
    CKPT_TRY_ASSIGN(const UniqueFd copy, sealed_copy(layout_text));
    Request request;
    request.value = object_bytes;
    CKPT_TRY_ASSIGN(Answer answer, checked(call(Type::kDeclare, request, {}, copy.get())));
    return take_segment(std::move(answer.fd), layout_text);
  }

  Result<int> begin(uint64_t wanted, int if_busy, uint64_t timeout_ms) {
    if (!mapped) return fail(Code::kUsage, "", "nothing was declared");
    if (writing) return fail(Code::kUsage, "", "a save is under way");
    began_us = now_us(CLOCK_MONOTONIC);
    Request request;
    request.step = wanted;
    request.flags = static_cast<uint32_t>(if_busy);
    request.value = timeout_ms;
    const int limit = static_cast<int>(std::min<uint64_t>(timeout_ms, 1 << 30)) + kAnswerMs;
    for (;;) {
      CKPT_TRY_ASSIGN(const Answer answer, checked(call(Type::kBegin, request, {}, -1, limit)));
      if (answer.reply.status == kPinned) {
        CKPT_TRY(make_own());
        continue;
      }
      if (answer.reply.status == kSkipped) {
        error = answer.text;
        return CKPT_FLASH_SKIPPED;
      }
      if (answer.reply.value[0] >= mapped->header().buffers) return fail(Code::kCorrupt, "agent", "names no buffer");
      buffer = answer.reply.value[0];
      break;
    }
    step = wanted;
    writing = true;
    copied_us = 0;
    Slot& slot = mapped->header().slots[buffer];
    const uint64_t was = slot.sequence.load();
    slot.sequence.store(was + 1 + was % 2);  // from here on it is no step
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return 0;
  }

  /// What loads have given out stops depending on the agent's buffers: each page is copied that was not yet.
  Result<void> make_own() {
    for (Loaded& one : loaded) {
      if (!one.pins) continue;
      if (one.memory.size() > 0 && ::madvise(one.memory.data(), one.memory.size(), MADV_POPULATE_WRITE) != 0)
        return sys_error("", "cannot copy what was loaded");
      CKPT_TRY(unpin(one));
    }
    return {};
  }
  Result<void> unpin(Loaded& one) {
    one.pins = false;
    Request request;
    request.value = one.buffer;
    CKPT_TRY(checked(call(Type::kRelease, request)));
    return {};
  }

  std::vector<CopyPart> parts_of(const void* const* data) const {
    std::vector<CopyPart> parts;
    const auto& tensors = mapped->layout.tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (data[i] != nullptr && tensors[i].bytes > 0)
        parts.push_back({mapped->buffer(buffer) + tensors[i].offset, data[i], tensors[i].bytes});
    }
    return parts;
  }

  Result<void> copy(const void* const* data) {
    if (!writing) return fail(Code::kUsage, "", "no save is under way");
    const uint64_t start = now_us(CLOCK_MONOTONIC);
    copy_all(parts_of(data), threads);
    copied_us += now_us(CLOCK_MONOTONIC) - start;
    return {};
  }

  /// Into the buffer; returns their bytes.
  Result<uint64_t> put_objects(const ckpt_flash_object* objects, uint32_t count) {
    std::vector<StoredObject> stored;
    for (uint32_t i = 0; i < count; ++i) {
      const ckpt_flash_object& object = objects[i];
      if (object.bytes > UINT32_MAX) return fail(Code::kUsage, object.key, "is too large for an object");
      stored.push_back({object.key,
                        static_cast<ObjectKind>(object.kind),
                        steps_of(object.steps, object.path),
                        {static_cast<const char*>(object.data), object.bytes}});
    }
    const std::string encoded = count == 0 ? std::string() : encode_objects(stored);
    const SegmentHeader& header = mapped->header();
    if (encoded.size() > header.objects_capacity) return fail(Code::kNoRoom, "objects", "need more room than declared");
    std::memcpy(mapped->buffer(buffer) + header.data_bytes, encoded.data(), encoded.size());
    return encoded.size();
  }

  /// The one moment at which the step comes into being; then the agent is told.
  Result<void> complete(uint64_t object_bytes, int persist, ckpt_flash_saved* saved) {
    Slot& slot = mapped->header().slots[buffer];
    slot.step.store(step);
    slot.objects_bytes.store(object_bytes);
    slot.saved_us.store(now_us(CLOCK_REALTIME));
    slot.sequence.store(slot.sequence.load() + 1, std::memory_order_release);
    Request request;
    request.step = step;
    request.value = buffer;
    request.flags = persist != 0 ? kPersistThis : 0;
    CKPT_TRY_ASSIGN(const Answer answer, ckpt::flash::checked(call(Type::kCommit, request)));
    if (saved != nullptr) {
      *saved = {copied_us, now_us(CLOCK_MONOTONIC) - began_us, mapped->layout.data_bytes + object_bytes,
                answer.reply.step, 0};
    }
    return {};
  }

  Result<void> commit(const ckpt_flash_object* objects, uint32_t count, int persist, ckpt_flash_saved* saved) {
    if (!writing) return fail(Code::kUsage, "", "no save is under way");
    CKPT_TRY_ASSIGN(const uint64_t object_bytes, put_objects(objects, count));
    writing = false;
    return complete(object_bytes, persist, saved);
  }

  // --- a save that does not copy ---

  /// After `begin`: returns once pages are protected; what cannot be is copied here and now.
  Result<void> take_snapshot(const void* const* data, const ckpt_flash_object* objects, uint32_t count, int persist,
                             ckpt_flash_saved* saved) {
    const uint64_t start = now_us(CLOCK_MONOTONIC);
    CKPT_TRY_ASSIGN(const uint64_t object_bytes, put_objects(objects, count));
    snapshot_saved = {};
    auto done = [this, object_bytes, persist, start] {
      copied_us = now_us(CLOCK_MONOTONIC) - start;
      snapshot_result = complete(object_bytes, persist, &snapshot_saved);
      under_way.store(false);
    };
    under_way.store(true);
    snapshot = Snapshot::begin(parts_of(data), threads, done);
    if (!snapshot) {
      under_way.store(false);
      CKPT_TRY(copy(data));
      writing = false;
      return complete(object_bytes, persist, saved);
    }
    if (saved != nullptr) {
      *saved = {now_us(CLOCK_MONOTONIC) - start, now_us(CLOCK_MONOTONIC) - began_us,
                mapped->layout.data_bytes + object_bytes, kAnyStep, snapshot->protected_bytes()};
    }
    return {};
  }

  /// Waits for the snapshot that is under way, if there is one.
  Result<void> finish() {
    if (!snapshot) return {};
    snapshot->wait();
    snapshot.reset();
    writing = false;
    return std::exchange(snapshot_result, Result<void>());
  }

  Result<void> abort() {
    if (!std::exchange(writing, false)) return {};
    Request request;
    request.value = buffer;
    CKPT_TRY(checked(call(Type::kAbort, request)));
    return {};
  }

  // --- what is loaded ---

  Result<ckpt_flash_loaded*> load(uint32_t of, uint64_t wanted, int from, const char* path) {
    const uint64_t start = now_us(CLOCK_MONOTONIC);
    if (writing) return fail(Code::kUsage, "", "a save is under way");
    Request request;
    request.rank = of;
    request.step = wanted;
    request.flags = static_cast<uint32_t>(from);
    CKPT_TRY_ASSIGN(Answer answer, checked(call(Type::kLoad, request, path != nullptr ? path : "", -1, -1)));
    const Reply& reply = answer.reply;
    if (!answer.fd || reply.value[0] >= kMostBuffers) return fail(Code::kCorrupt, "agent", "hands over no memory");
    Loaded out;
    CKPT_TRY(map_private(answer.fd.get(), reply.value[0], out));
    out.buffer = reply.value[0];
    out.pins = reply.value[2] != 0;
    show(out);
    out.view.step = reply.step;
    out.view.level = static_cast<int32_t>(reply.value[1]);
    // Of the segment that saves go to from now on: a declare of the same layout takes it up.
    if (mapped && !is_same_file(answer.fd.get(), mapped->fd.get()) && out.pins) mapped.reset();
    loaded.push_back(std::move(out));
    ckpt_flash_loaded& view = loaded.back().view;
    view.mapping = &loaded.back();
    view.total_us = now_us(CLOCK_MONOTONIC) - start;
    return &view;
  }

  static bool is_same_file(int a, int b) {
    struct stat x {
    }, y{};
    return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
  }

  /// One buffer, copy-on-write, and what is in it.
  static Result<void> map_private(int fd, uint64_t buffer, Loaded& out) {
    struct stat st {};
    if (::fstat(fd, &st) != 0) return sys_error("segment", "cannot look at");
    const auto size = static_cast<size_t>(st.st_size);
    void* whole = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (whole == MAP_FAILED) return sys_error("segment", "cannot map");
    const Mapping look(whole, size);
    const auto& header = *reinterpret_cast<const SegmentHeader*>(look.data());
    const uint64_t at = header.buffer_offset + buffer * header.buffer_stride, stride = header.buffer_stride;
    const uint64_t objects = header.slots[buffer].objects_bytes.load();
    if (std::memcmp(header.magic, kSegmentMagic, sizeof kSegmentMagic) != 0 || buffer >= header.buffers ||
        at + stride > size || header.data_bytes + objects > stride || header.layout_offset + header.layout_bytes > size)
      return fail(Code::kCorrupt, "agent", "hands over what is no segment");
    CKPT_TRY_ASSIGN(out.layout, decode_layout({look.data() + header.layout_offset, header.layout_bytes}));
    if (out.layout.data_bytes != header.data_bytes) return fail(Code::kCorrupt, "segment", "contradicts its layout");
    void* memory =
        ::mmap(nullptr, stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, static_cast<off_t>(at));
    if (memory == MAP_FAILED) return sys_error("segment", "cannot map");
    out.memory = Mapping(memory, stride);
    CKPT_TRY_ASSIGN(out.objects, decode_objects({out.memory.data() + header.data_bytes, objects}));
    out.view.bytes = header.data_bytes + objects;
    return {};
  }

  static void show(Loaded& out) {
    for (const LayoutTensor& tensor : out.layout.tensors) {
      out.paths.push_back(views_of(tensor.path));
      out.data.push_back(out.memory.data() + tensor.offset);
      out.tensors.push_back({tensor.key.c_str(), tensor.dtype.c_str(), static_cast<uint32_t>(tensor.shape.size()),
                             tensor.shape.data(), tensor.global_shape.data(), tensor.global_offset.data(),
                             static_cast<uint32_t>(tensor.path.size()), out.paths.back().data()});
    }
    for (const StoredObject& object : out.objects) {
      out.paths.push_back(views_of(object.path));
      out.object_views.push_back({object.key.c_str(), static_cast<int32_t>(object.kind),
                                  static_cast<uint32_t>(object.path.size()), out.paths.back().data(),
                                  object.bytes.data(), object.bytes.size()});
    }
    out.view.tensors = static_cast<uint32_t>(out.tensors.size());
    out.view.tensor = out.tensors.data();
    out.view.data = out.data.data();
    out.view.objects = static_cast<uint32_t>(out.object_views.size());
    out.view.object = out.object_views.data();
  }

  // --- results for C ---

  int status(const Error& failed) {
    error = failed.text();
    return failed.sys_errno == EPIPE ? kLostStatus : exit_code(failed.code);
  }
  /// One call of the interface, behind what an earlier one has left under way: its failure is the failure of this one.
  template <class Work>
  int run(Work work) {
    try {
      if (auto before = finish(); !before) return status(before.error());
      auto done = work();
      return done ? 0 : status(done.error());
    } catch (const std::bad_alloc&) {
      return status(Error(Code::kNoRoom, "", "out of memory"));
    }
  }
};

extern "C" {

int ckpt_flash_open(const ckpt_flash_options* options, ckpt_flash** out) {
  *out = nullptr;
  // What came later is not in an older program's options.
  constexpr size_t kLeastSize = offsetof(ckpt_flash_options, partner_copy);
  if (options == nullptr || options->size < kLeastSize || options->directory == nullptr) return 2;
  auto* flash = new (std::nothrow)::ckpt_flash;
  if (flash == nullptr) return 9;
  *out = flash;
  return flash->run([&]() -> Result<void> {
    flash->directory = options->directory;
    flash->socket_path = options->socket != nullptr ? options->socket : "";
    flash->rank = options->rank;
    flash->world = options->world != 0 ? options->world : 1;
    flash->local_world = options->local_world != 0 ? options->local_world : flash->world;
    flash->partner_copy = options->size >= sizeof *options && options->partner_copy != 0;
    flash->threads =
        options->threads != 0 ? options->threads : std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
    return flash->connect();
  });
}

int ckpt_flash_reconnect(ckpt_flash* flash) {
  return flash->run([&] { return flash->reconnect(); });
}

const char* ckpt_flash_error(const ckpt_flash* flash) { return flash->error.c_str(); }

int ckpt_flash_declare(ckpt_flash* flash, const ckpt_flash_tensor* tensors, uint32_t count, uint64_t object_bytes) {
  return flash->run([&] { return flash->declare(tensors, count, object_bytes); });
}

int ckpt_flash_ready(ckpt_flash* flash) {
  if (flash->mapped && flash->mapped->readying.joinable()) flash->mapped->readying.join();
  return 0;
}

int ckpt_flash_begin(ckpt_flash* flash, uint64_t step, int if_busy, uint64_t timeout_ms, void** places) {
  int skipped = 0;
  const int failed = flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(skipped, flash->begin(step, if_busy, timeout_ms));
    if (skipped == 0 && places != nullptr) (void)ckpt_flash_places(flash, places);
    return {};
  });
  return failed != 0 ? failed : skipped;
}

int ckpt_flash_places(const ckpt_flash* flash, void** places) {
  if (!flash->mapped) return exit_code(Code::kUsage);
  const auto& tensors = flash->mapped->layout.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) places[i] = flash->mapped->buffer(flash->buffer) + tensors[i].offset;
  return 0;
}

int ckpt_flash_copy(ckpt_flash* flash, const void* const* data) {
  return flash->run([&] { return flash->copy(data); });
}

int ckpt_flash_commit(ckpt_flash* flash, const ckpt_flash_object* objects, uint32_t count, int persist,
                      ckpt_flash_saved* saved) {
  return flash->run([&] { return flash->commit(objects, count, persist, saved); });
}

int ckpt_flash_abort(ckpt_flash* flash) {
  return flash->run([&] { return flash->abort(); });
}

int ckpt_flash_keep(ckpt_flash* flash, uint64_t step) {
  return flash->run([&]() -> Result<void> {
    Request request;
    request.step = step;
    CKPT_TRY(ckpt::flash::checked(flash->call(Type::kKeep, request)));
    return {};
  });
}

int ckpt_flash_save(ckpt_flash* flash, uint64_t step, const void* const* data, const ckpt_flash_object* objects,
                    uint32_t count, int if_busy, uint64_t timeout_ms, int persist, ckpt_flash_saved* saved) {
  int done = ckpt_flash_begin(flash, step, if_busy, timeout_ms, nullptr);
  if (done != 0) return done;
  done = ckpt_flash_copy(flash, data);
  if (done == 0) done = ckpt_flash_commit(flash, objects, count, persist, saved);
  if (done != 0 && flash->writing) {
    const std::string why = flash->error;
    (void)ckpt_flash_abort(flash);
    flash->error = why;
  }
  return done;
}

int ckpt_flash_snapshot(ckpt_flash* flash, uint64_t step, const void* const* data, const ckpt_flash_object* objects,
                        uint32_t count, int if_busy, uint64_t timeout_ms, int persist, ckpt_flash_saved* saved) {
  int done = ckpt_flash_begin(flash, step, if_busy, timeout_ms, nullptr);
  if (done != 0) return done;
  done = flash->run([&] { return flash->take_snapshot(data, objects, count, persist, saved); });
  if (done != 0 && flash->writing) {
    const std::string why = flash->error;
    (void)ckpt_flash_abort(flash);
    flash->error = why;
  }
  return done;
}

int ckpt_flash_done(const ckpt_flash* flash) { return flash->under_way.load() ? 0 : 1; }

int ckpt_flash_wait(ckpt_flash* flash, ckpt_flash_saved* saved) {
  const int failed = flash->run([&]() -> Result<void> { return {}; });
  if (failed == 0 && saved != nullptr) *saved = flash->snapshot_saved;
  return failed;
}

int ckpt_flash_load(ckpt_flash* flash, uint64_t step, int from, const char* path, ckpt_flash_loaded** out) {
  *out = nullptr;
  return flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(*out, flash->load(flash->rank, step, from, path));
    return {};
  });
}

int ckpt_flash_look(ckpt_flash* flash, uint32_t rank, uint64_t step, ckpt_flash_loaded** out) {
  *out = nullptr;
  return flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(*out, flash->load(rank, step, CKPT_FLASH_FROM_MEMORY, nullptr));
    return {};
  });
}

void ckpt_flash_unload(ckpt_flash* flash, ckpt_flash_loaded* loaded) {
  flash->loaded.remove_if([&](Loaded& one) {
    if (&one.view != loaded) return false;
    if (one.pins && flash->socket) (void)flash->run([&] { return flash->unpin(one); });
    return true;
  });
}

int ckpt_flash_persist(ckpt_flash* flash, uint64_t step, const char* directory, int wait) {
  return flash->run([&]() -> Result<void> {
    Request request;
    request.step = step;
    request.flags = wait != 0 ? kWait : 0;
    CKPT_TRY(ckpt::flash::checked(
        flash->call(Type::kPersist, request, directory != nullptr ? directory : "", -1, wait != 0 ? -1 : kAnswerMs)));
    return {};
  });
}

int ckpt_flash_status(ckpt_flash* flash, const char** json) {
  return flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(Answer answer, ckpt::flash::checked(flash->call(Type::kStatus, {})));
    flash->text = std::move(answer.text);
    *json = flash->text.c_str();
    return {};
  });
}

void ckpt_flash_close(ckpt_flash* flash) {
  if (flash == nullptr) return;
  (void)flash->run([&]() -> Result<void> { return {}; });
  if (flash->socket) (void)flash->run([&] { return flash->abort(); });
  if (flash->socket) (void)flash->run([&] { return flash->call(Type::kBye, {}, {}, -1, 1000); });
  delete flash;
}

}  // extern "C"
