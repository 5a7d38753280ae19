#include "formats/npy/header.h"

namespace ckpt::formats {

using tensor::DType;

std::string npy_descr(DType dtype) {
  const std::string size = std::to_string(tensor::item_size(dtype));
  switch (dtype) {
    case DType::kBool: return "|b1";
    case DType::kUint8: return "|u1";
    case DType::kInt8: return "|i1";
    case DType::kUint16: case DType::kUint32: case DType::kUint64: return "<u" + size;
    case DType::kInt16: case DType::kInt32: case DType::kInt64: return "<i" + size;
    case DType::kFloat16: case DType::kFloat32: case DType::kFloat64: return "<f" + size;
    case DType::kComplex64: case DType::kComplex128: return "<c" + size;
    default: return (size == "1" ? "|V" : "<V") + size;
  }
}

bool has_numpy_type(DType dtype) { return npy_descr(dtype)[1] != 'V'; }

std::string npy_header(DType dtype, const tensor::Shape& shape, size_t alignment) {
  std::string dictionary = "{'descr': '" + npy_descr(dtype) + "', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < shape.size(); ++i) dictionary += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  dictionary += shape.size() == 1 ? ",), }" : "), }";
  const bool wide = dictionary.size() + alignment > 0xffff;
  const size_t fixed = wide ? 12 : 10;
  dictionary.append(alignment - (fixed + dictionary.size() + 1) % alignment, ' ');
  dictionary += '\n';
  std::string out("\x93NUMPY", 6);
  out += wide ? '\2' : '\1';
  out += '\0';
  for (size_t i = 0; i < (wide ? 4 : 2); ++i) out += static_cast<char>(dictionary.size() >> (8 * i) & 0xff);
  return out + dictionary;
}

}  // namespace ckpt::formats
