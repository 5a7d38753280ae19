// What nvcc puts into a program and the runtime hands to the driver: a wrapper, behind it a header and one entry for
// each kind of code. The stand-in takes the entry whose text is a module of its own (standin.h), and no other.
#include <string.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

struct Wrapper {
  static constexpr uint32_t kMagic = 0x466243b1;
  uint32_t magic, version;
  const void* data;
  const void* rest;
};
struct Header {
  static constexpr uint32_t kMagic = 0xba55ed50;
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  ///< of the entries
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;  ///< behind its header
};

uint32_t magic_of(const void* image) {
  uint32_t magic;
  ::memcpy(&magic, image, sizeof magic);
  return magic;
}

const char* entry_of_ours(const char* header) {
  Header whole;
  ::memcpy(&whole, header, sizeof whole);
  for (uint64_t at = 0; whole.bytes - at >= sizeof(Entry);) {
    Entry entry;
    const char* start = header + whole.header_bytes + at;
    ::memcpy(&entry, start, sizeof entry);
    const uint64_t left = whole.bytes - at;
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left) break;
    if (entry.bytes > left - entry.header_bytes) break;
    const char* text = start + entry.header_bytes;
    if (entry.bytes >= sizeof kModuleTitle && ::memcmp(text, kModuleTitle, sizeof kModuleTitle - 1) == 0 &&
        ::memchr(text, 0, entry.bytes) != nullptr)
      return text;
    at += entry.header_bytes + entry.bytes;
  }
  return nullptr;
}

}  // namespace

const char* module_text(const void* image) {
  if (magic_of(image) == Wrapper::kMagic) {
    Wrapper wrapper;
    ::memcpy(&wrapper, image, sizeof wrapper);
    image = wrapper.data;
  }
  const char* text = static_cast<const char*>(image);
  if (magic_of(image) == Header::kMagic) return entry_of_ours(text);
  return ::strncmp(text, kModuleTitle, sizeof kModuleTitle - 1) == 0 ? text : nullptr;
}

}  // namespace ckpt::standin
