// What is loaded: one buffer of a segment, as memory of this process alone.
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/flash/client/handle.h"

namespace ckpt::flash {

static std::vector<ckpt_flash_step> views_of(const std::vector<Step>& steps) {
  std::vector<ckpt_flash_step> out;
  for (const Step& step : steps) out.push_back({static_cast<int32_t>(step.kind), step.name.c_str(), step.number});
  return out;
}

Result<ckpt_flash_loaded*> Handle::load(uint32_t of, uint64_t wanted, int from, const char* path) {
  const uint64_t start = now_us(CLOCK_MONOTONIC);
  if (writing) return fail(Code::kUsage, "", "a save is under way");
  Request request;
  request.rank = of;
  request.step = wanted;
  request.flags = static_cast<uint32_t>(from);
  CKPT_TRY_ASSIGN(Answer answer, checked(call(Type::kLoad, request, path != nullptr ? path : "", -1, -1)));
  const Reply& reply = answer.reply;
  if (!answer.fd || reply.value[0] >= kMostBuffers) return fail(Code::kCorrupt, "agent", "hands over no memory");
  const bool pins = reply.value[2] != 0;
  if (pins) CKPT_TRY(saves_go_to(answer.fd.get()));
  Loaded& out = loaded.emplace_back();
  out.buffer = reply.value[0];
  out.pins = pins;
  if (auto done = map_private(answer.fd.get(), reply.value[0], out); !done) {
    if (pins) (void)unpin(out);
    loaded.pop_back();
    return done.error();
  }
  show(out);
  out.view.step = reply.step;
  out.view.level = static_cast<int32_t>(reply.value[1]);
  out.view.mapping = &out;
  out.view.total_us = now_us(CLOCK_MONOTONIC) - start;
  return &out.view;
}

Result<FileIdentity> FileIdentity::of(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return sys_error("segment", "cannot look at");
  return FileIdentity{st.st_dev, st.st_ino};
}

Result<void> Handle::saves_go_to(int fd) {
  CKPT_TRY_ASSIGN(const FileIdentity now, FileIdentity::of(fd));
  if (now == saved_to) return {};
  for (Loaded& one : loaded) one.pins = false;
  mapped.reset();  // a declare of the same layout takes this one up
  saved_to = now;
  return {};
}

Result<void> Handle::map_private(int fd, uint64_t buffer, Loaded& out) {
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

void Handle::show(Loaded& out) {
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
                                static_cast<uint32_t>(object.path.size()), out.paths.back().data(), object.bytes.data(),
                                object.bytes.size()});
  }
  out.view.tensors = static_cast<uint32_t>(out.tensors.size());
  out.view.tensor = out.tensors.data();
  out.view.data = out.data.data();
  out.view.objects = static_cast<uint32_t>(out.object_views.size());
  out.view.object = out.object_views.data();
}

}  // namespace ckpt::flash
