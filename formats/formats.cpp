#include <fcntl.h>

#include <array>

#include "formats/format.h"
#include "formats/torch_dist/reader.h"
#include "formats/zarr/reader.h"
#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

std::span<const Format> formats() {
  static constexpr std::array kFormats = {
      Format{"zarr", "Megatron-Core distributed checkpoint, zarr backend", recognises_megatron_zarr, read_megatron_zarr},
      Format{"torch_dist", "Megatron-Core distributed checkpoint, torch_dist backend", recognises_torch_dist, read_torch_dist},
      Format{"dcp", "PyTorch distributed checkpoint", recognises_dcp, read_torch_dist},
      Format{"zarr2", "Zarr version 2 array or group", recognises_zarr2, read_zarr2},
  };
  return kFormats;
}

Result<tensor::Catalog> open_checkpoint(const fs::path& path, const ReadOptions& options) {
  CKPT_TRY_ASSIGN(UniqueFd probe, io::open_file(path, O_RDONLY | O_NONBLOCK));
  for (const Format& format : formats()) {
    if (format.recognises(path)) return format.read(path, options);
  }
  return fail(Code::kUnsupported, path.string(), "is no checkpoint that ckpt knows");
}

}  // namespace ckpt::formats
