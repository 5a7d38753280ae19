#include "formats/torch_dist/record.h"

#include <array>

#include "formats/pickle/writer.h"
#include "formats/torch_save/tensor_pickle.h"
#include "lib/base/digest.h"

namespace ckpt::torch_dist {

namespace {

using tensor::DType;
using tensor::Shape;

constexpr const char* kVersionText = "3\n";

uint32_t crc_of(std::string_view text) { return crc32(0, as_bytes(text)); }

}  // namespace

uint32_t record_alignment(uint64_t data_size) { return formats::storage_alignment(data_size); }

TensorRecord tensor_record(DType dtype, const Shape& shape) {
  TensorRecord out;
  pickle::Writer body;
  formats::write_tensor(body, dtype, shape, "0");
  body.stop();
  out.pickle = body.take();
  const uint64_t bytes = tensor::element_count(shape).value_or(0) * item_size(dtype);
  out.layout.add("archive/data.pkl", out.pickle.size());
  out.layout.add("archive/data/0", bytes, record_alignment(bytes));
  out.layout.add("archive/version", std::string_view(kVersionText).size());
  return out;
}

std::string TensorRecord::head(uint32_t data_crc) const {
  return layout.header(kPickle, crc_of(pickle)) + pickle + layout.header(kData, data_crc);
}

std::string TensorRecord::tail(uint32_t data_crc) const {
  const std::array<uint32_t, 3> crcs = {crc_of(pickle), data_crc, crc_of(kVersionText)};
  return layout.header(kVersion, crcs[kVersion]) + kVersionText + layout.directory(crcs);
}

std::string empty_dict_file() {
  pickle::Writer body;
  body.empty_dict();
  body.stop();
  const std::string pickle = body.take();
  zip::Layout layout;
  layout.add("common/data.pkl", pickle.size());
  layout.add("common/version", std::string_view(kVersionText).size());
  const std::array<uint32_t, 2> crcs = {crc_of(pickle), crc_of(kVersionText)};
  return layout.header(0, crcs[0]) + pickle + layout.header(1, crcs[1]) + kVersionText + layout.directory(crcs);
}

}  // namespace ckpt::torch_dist
