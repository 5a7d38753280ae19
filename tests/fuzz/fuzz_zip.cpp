// Zip archives, and the torch.save files in them.
#include "formats/torch_save/archive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckpt::zip::ByteSource source({reinterpret_cast<const std::byte*>(data), size}, "input");
  auto archive = ckpt::zip::read_archive(source);
  if (archive) {
    for (const ckpt::zip::Record& record : archive->records) (void)ckpt::zip::record_crc(source, record);
    (void)ckpt::zip::find_oddities(source, *archive);
  }
  (void)ckpt::formats::read_torch_file(source);
  (void)ckpt::formats::read_tensor_item(source);
  return 0;
}
