// The agent, and what is saved.
#include "lib/flash/client/handle.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::flash {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

constexpr uint64_t kReadied = uint64_t{64} << 20;

static std::vector<Step> steps_of(uint32_t count, const ckpt_flash_step* path) {
  std::vector<Step> out;
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back({static_cast<Step::Kind>(path[i].kind), path[i].name != nullptr ? path[i].name : "", path[i].number});
  }
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

void Mapped::make_ready() {
  const uint64_t begin = header().buffer_offset;
  for (uint64_t at = begin; at < memory.size() && !stop.load(); at += kReadied) {
    const uint64_t size = std::min(kReadied, memory.size() - at);
    ::madvise(memory.data() + at, size, MADV_HUGEPAGE);
    if (::madvise(memory.data() + at, size, MADV_POPULATE_WRITE) != 0) return;
  }
}

Result<Answer> Handle::call(Type type, Request request, const std::string& words, int fd, int timeout) {
  const std::lock_guard lock(talking);
  if (!socket) return sys_error(EPIPE, "agent", "is not connected");
  request.type = static_cast<uint16_t>(type);
  request.id = ++next_id;
  auto answer = ask(socket.get(), request, words, fd, timeout);
  if (answer) return answer;
  socket.reset();  // what it would still say belongs to this question
  // An agent that says nothing is no agent: the next one, or itself once it goes on, gets the memory from here.
  if (answer.error().code == Code::kBusy) return sys_error(EPIPE, "agent", answer.error().message);
  return answer;
}

Result<void> Handle::connect() {
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

Result<void> Handle::reconnect() {
  CKPT_TRY(connect());
  writing = false;
  for (Loaded& one : loaded) {
    if (!one.pins) continue;
    if (mapped) CKPT_TRY(copy_pages(one));  // the agent that takes over its segment knows of no pins
    one.pins = false;
  }
  if (!mapped) return {};
  const auto adopted = checked(call(Type::kAdopt, {}, {}, mapped->fd.get()));
  return adopted ? Result<void>() : Result<void>(adopted.error());
}

Result<void> Handle::take_segment(UniqueFd fd, const std::string& layout_text) {
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
  CKPT_TRY(saves_go_to(out->fd.get()));
  mapped = std::move(out);
  if (!start_thread(mapped->readying, [m = mapped.get()] { m->make_ready(); })) mapped->make_ready();
  return {};
}

Result<void> Handle::declare(const ckpt_flash_tensor* tensors, uint32_t count, uint64_t object_bytes) {
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

Result<int> Handle::begin(uint64_t wanted, int if_busy, uint64_t timeout_ms) {
  if (!mapped) return fail(Code::kUsage, "", "nothing was declared");
  if (writing) return fail(Code::kUsage, "", "a save is under way");
  began_us = now_us(CLOCK_MONOTONIC);
  Request request;
  request.step = wanted;
  request.flags = static_cast<uint32_t>(if_busy);
  request.value = timeout_ms;
  const uint64_t waits_ms = static_cast<IfBusy>(if_busy) == IfBusy::kWait ? std::min<uint64_t>(timeout_ms, 1 << 30) : 0;
  const int limit = static_cast<int>(waits_ms) + kAnswerMs;
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

Result<void> Handle::make_own() {
  for (Loaded& one : loaded) {
    if (!one.pins) continue;
    CKPT_TRY(copy_pages(one));
    CKPT_TRY(unpin(one));
  }
  return {};
}

Result<void> Handle::copy_pages(Loaded& one) {
  if (one.memory.size() > 0 && ::madvise(one.memory.data(), one.memory.size(), MADV_POPULATE_WRITE) != 0)
    return sys_error("", "cannot copy what was loaded");
  return {};
}

bool Handle::end() {
  for (Loaded& one : loaded) {
    if (std::exchange(one.pins, false)) (void)copy_pages(one);
  }
  mapped.reset();
  closed = true;
  return static_cast<bool>(socket);
}

Result<void> Handle::unpin(Loaded& one) {
  one.pins = false;
  for (const Loaded& other : loaded) {
    if (other.pins && other.buffer == one.buffer) return {};
  }
  Request request;
  request.value = one.buffer;
  CKPT_TRY(checked(call(Type::kRelease, request)));
  return {};
}

std::vector<CopyPart> Handle::parts_of(const void* const* data) const {
  std::vector<CopyPart> parts;
  const auto& tensors = mapped->layout.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (data[i] != nullptr && tensors[i].bytes > 0)
      parts.push_back({mapped->buffer(buffer) + tensors[i].offset, data[i], tensors[i].bytes});
  }
  return parts;
}

Result<void> Handle::copy(const void* const* data) {
  if (!writing) return fail(Code::kUsage, "", "no save is under way");
  const uint64_t start = now_us(CLOCK_MONOTONIC);
  copy_all(parts_of(data), threads);
  copied_us += now_us(CLOCK_MONOTONIC) - start;
  return {};
}

Result<uint64_t> Handle::put_objects(const ckpt_flash_object* objects, uint32_t count) {
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

Result<void> Handle::complete(uint64_t object_bytes, int persist, ckpt_flash_saved* saved) {
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

Result<void> Handle::commit(const ckpt_flash_object* objects, uint32_t count, int persist, ckpt_flash_saved* saved) {
  if (!writing) return fail(Code::kUsage, "", "no save is under way");
  CKPT_TRY_ASSIGN(const uint64_t object_bytes, put_objects(objects, count));
  writing = false;
  return complete(object_bytes, persist, saved);
}

Result<void> Handle::take_snapshot(const void* const* data, const ckpt_flash_object* objects, uint32_t count,
                                   int persist, ckpt_flash_saved* saved) {
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

Result<void> Handle::finish() {
  if (!snapshot) return {};
  snapshot->wait();
  snapshot.reset();
  writing = false;
  return std::exchange(snapshot_result, Result<void>());
}

Result<void> Handle::abort() {
  if (!std::exchange(writing, false)) return {};
  Request request;
  request.value = buffer;
  CKPT_TRY(checked(call(Type::kAbort, request)));
  return {};
}

}  // namespace ckpt::flash
