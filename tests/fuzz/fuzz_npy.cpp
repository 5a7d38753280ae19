// .npy headers, and the beginnings of deflate streams as .npz files hold them.
#include "formats/npy/deflate.h"
#include "formats/npy/header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ckpt::ByteSpan bytes = std::as_bytes(std::span(data, size));
  (void)ckpt::formats::npy_header_bytes(bytes.first(std::min<size_t>(size, ckpt::formats::kNpyPrefix)));
  auto header = ckpt::formats::parse_npy_header(bytes);
  if (header && header->data > size) __builtin_trap();
  std::vector<std::byte> content(4096), rest(100);
  auto got = ckpt::formats::inflate_beginning(bytes, content);
  if (got) (void)ckpt::formats::parse_npy_header(ckpt::ByteSpan(content).first(*got));
  (void)ckpt::formats::inflate_all(bytes, content, rest);
  return 0;
}
