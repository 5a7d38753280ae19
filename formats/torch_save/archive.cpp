#include "formats/torch_save/archive.h"

#include <charconv>

#include "lib/base/digest.h"

namespace ckpt::formats {

namespace {

constexpr uint64_t kMaxPickle = 256 << 20;
constexpr uint64_t kMaxWord = 64;  ///< `version`, `byteorder`

tensor::Checksum checksum(const zip::Record& record) {
  return {{0, record.offset, record.size}, record.crc, record.name};
}

/// A record whole, and so its CRC costs nothing. 0: it was not computed.
Result<std::vector<std::byte>> read_checked(const zip::ByteSource& source, const zip::Record& record, uint64_t limit,
                                            std::vector<tensor::Checksum>& wrong) {
  auto bytes = zip::read_record(source, record, limit);
  if (bytes && record.crc != 0 && crc32(0, *bytes) != record.crc) wrong.push_back(checksum(record));
  return bytes;
}

Result<std::string> read_word(const zip::ByteSource& source, const zip::Record& record,
                              std::vector<tensor::Checksum>& wrong) {
  CKPT_TRY_ASSIGN(auto bytes, read_checked(source, record, kMaxWord, wrong));
  std::string out(as_text(bytes));
  while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) out.pop_back();
  return out;
}

/// Also says whether the storages are big endian.
Result<bool> check_kind(const zip::ByteSource& source, const zip::Archive& archive,
                        std::vector<tensor::Checksum>& wrong) {
  for (const zip::Record& record : archive.records) {
    if (record.name == archive.top + "/constants.pkl" || record.name.rfind(archive.top + "/code/", 0) == 0) {
      return fail(Code::kUnsupported, source.subject(), "is a TorchScript archive");
    }
  }
  const zip::Record* version = archive.find("version");
  if (version == nullptr)
    return fail(Code::kCorrupt, source.subject(), "no torch.save file: the record `version` is missing");
  CKPT_TRY_ASSIGN(std::string text, read_word(source, *version, wrong));
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    return fail(Code::kCorrupt, source.subject(), "the record `version` holds no number");
  }
  if (number > 10) return fail(Code::kUnsupported, source.subject(), "is a torch.save file of version " + text);
  if (const zip::Record* order = archive.find("byteorder")) {
    CKPT_TRY_ASSIGN(std::string word, read_word(source, *order, wrong));
    if (word != "little" && word != "big")
      return fail(Code::kCorrupt, source.subject(), "the record `byteorder` names no byte order");
    return word == "big";
  }
  return false;
}

}  // namespace

Result<const zip::Record*> TorchArchive::storage(const pickle::TorchTensor& tensor, const std::string& subject) const {
  const std::string name = "data/" + std::string(tensor.storage_key);
  const zip::Record* record = archive.find(name);
  if (record == nullptr) return fail(Code::kCorrupt, subject, "the record " + name + " is missing");
  if (record->size != tensor.storage_bytes) {
    return fail(Code::kCorrupt, subject,
                "the record " + name + " has " + std::to_string(record->size) + " bytes instead of " +
                    std::to_string(tensor.storage_bytes));
  }
  return record;
}

Result<TorchArchive> read_torch_archive(const zip::ByteSource& source) {
  TorchArchive out;
  CKPT_TRY_ASSIGN(out.archive, zip::read_archive(source));
  CKPT_TRY_ASSIGN(out.big_endian, check_kind(source, out.archive, out.wrong));
  const zip::Record* data = out.archive.find("data.pkl");
  if (data == nullptr)
    return fail(Code::kCorrupt, source.subject(), "no torch.save file: the record `data.pkl` is missing");
  CKPT_TRY_ASSIGN(out.pickle, read_checked(source, *data, kMaxPickle, out.wrong));
  auto graph = pickle::parse(out.pickle);
  if (!graph) {
    graph.error().subject = source.subject();
    return std::move(graph).error();
  }
  if (graph->consumed() != out.pickle.size())
    return fail(Code::kCorrupt, source.subject(), "bytes follow the end of its pickle");
  out.graph = std::move(*graph);
  return out;
}

Result<TensorItem> read_tensor_item(const zip::ByteSource& source) {
  CKPT_TRY_ASSIGN(TorchArchive archive, read_torch_archive(source));
  auto tensor = pickle::read_torch_tensor(archive.graph, archive.graph.root());
  if (!tensor) {
    tensor.error().subject = source.subject();
    return std::move(tensor).error();
  }
  CKPT_TRY_ASSIGN(const zip::Record* record, archive.storage(*tensor, source.subject()));
  const uint64_t item = tensor::item_size(tensor->dtype);
  TensorItem out;
  out.dtype = tensor->torch_dtype;
  CKPT_TRY_ASSIGN(out.layout, stored_layout(*tensor, archive.big_endian));
  out.length = out.layout ? stored_extent(*out.layout, tensor->dtype, tensor->shape)
                          : tensor::element_count(tensor->shape).value_or(0) * item;
  out.offset = out.length == 0 ? record->offset : record->offset + tensor->storage_offset * item;
  out.shape = std::move(tensor->shape);
  out.storage = checksum(*record);
  out.wrong = std::move(archive.wrong);
  return out;
}

}  // namespace ckpt::formats
