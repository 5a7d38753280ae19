#include "formats/torch_dist/object_record.h"

#include <algorithm>
#include <array>

#include "formats/pickle/rewrap.h"
#include "formats/zip/writer.h"
#include "formats/zip/zip.h"
#include "lib/base/digest.h"

namespace ckpt::torch_dist {

namespace {

using tensor::Part;

constexpr uint64_t kMaxPickle = 32 << 20;  ///< edited in memory, in a few copies
constexpr uint64_t kMaxCommon = 64 << 20;

/// An object's bytes, wherever they are.
class ObjectBytes {
 public:
  static Result<ObjectBytes> open(const tensor::Catalog& source, const tensor::FileRange& where,
                                  ByteSpan inline_bytes) {
    ObjectBytes out;
    out.where_ = where;
    out.inline_ = inline_bytes;
    if (inline_bytes.empty()) {
      out.subject_ = source.files[where.file].path;
      CKPT_TRY_ASSIGN(out.fd_, source.open_file(where.file));
    }
    return out;
  }
  zip::ByteSource bytes() const {
    return inline_.empty() ? zip::ByteSource(fd_.get(), where_.offset, where_.length, subject_)
                           : zip::ByteSource(inline_, "object");
  }
  /// Part of it, to be written later.
  Part part(uint64_t offset, uint64_t size) const {
    if (size == 0) return {};
    if (!inline_.empty()) return Part::of(std::string(as_text(inline_.subspan(offset, size))));
    return Part::of(tensor::FileRange{where_.file, where_.offset + offset, size});
  }

 private:
  UniqueFd fd_;
  tensor::FileRange where_;
  ByteSpan inline_;
  std::string subject_;
};

struct EditedArchive {
  std::vector<std::string> names;  ///< without the top folder
  std::string pickle;              ///< the new data.pkl
  std::vector<const zip::Record*> records;
};

std::string name_below_top(const zip::Archive& archive, const zip::Record& record) {
  return record.name.substr(std::min(record.name.size(), archive.top.size() + 1));
}

/// A torch.save archive's records with the pickle edited. .data/serialization_id is a hash of what was there before.
Result<EditedArchive> edit(const zip::Archive& archive, const zip::ByteSource& bytes,
                           Result<std::string> (*change)(std::string_view)) {
  const zip::Record* pickle = archive.find("data.pkl");
  if (pickle == nullptr)
    return fail(Code::kUnsupported, bytes.subject(), "is not a torch.save archive: it has no data.pkl");
  if (archive.find("constants.pkl") != nullptr)
    return fail(Code::kUnsupported, bytes.subject(), "is a TorchScript archive");
  CKPT_TRY_ASSIGN(std::vector<std::byte> old, zip::read_record(bytes, *pickle, kMaxPickle));
  EditedArchive out;
  CKPT_TRY_ASSIGN(out.pickle, change(as_text(old)));
  for (const zip::Record& record : archive.records) {
    std::string name = name_below_top(archive, record);
    if (name == ".data/serialization_id") continue;
    out.names.push_back(std::move(name));
    out.records.push_back(&record == pickle ? nullptr : &record);
  }
  return out;
}

/// The archive written anew below `top`: parts in order, with the bytes of the other records left where they are.
Result<ObjectRecord> rebuild(const EditedArchive& edited, const ObjectBytes& object, const std::string& top,
                             Detail detail) {
  zip::Layout layout;
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < edited.names.size(); ++i) {
    const zip::Record* record = edited.records[i];
    layout.add(top + "/" + edited.names[i], record != nullptr ? record->size : edited.pickle.size());
    uint32_t crc = 0;
    if (record == nullptr) {
      crc = crc32(0, as_bytes(edited.pickle));
    } else if (detail == Detail::kContent) {
      CKPT_TRY_ASSIGN(crc, zip::record_crc(object.bytes(), *record));
    }
    crcs.push_back(crc);
  }
  ObjectRecord out;
  for (size_t i = 0; i < edited.names.size(); ++i) {
    const zip::Record* record = edited.records[i];
    out.parts.push_back(Part::of(layout.header(i, crcs[i])));
    out.parts.push_back(record != nullptr ? object.part(record->offset, record->size) : Part::of(edited.pickle));
  }
  out.parts.push_back(Part::of(layout.directory(crcs)));
  out.size = layout.size();
  return out;
}

Result<ObjectRecord> wrapped(const tensor::Catalog& source, const tensor::Object& object, Detail detail) {
  CKPT_TRY_ASSIGN(ObjectBytes bytes, ObjectBytes::open(source, object.where, object.inline_bytes));
  std::array<std::byte, 2> magic{};
  CKPT_TRY(bytes.bytes().read(0, magic));
  if (as_text(magic) != "PK") {
    return fail(Code::kUnsupported, bytes.bytes().subject(),
                "is no zip archive (a legacy torch.save file?) and cannot be put into a list");
  }
  CKPT_TRY_ASSIGN(zip::Archive archive, zip::read_archive(bytes.bytes()));
  CKPT_TRY_ASSIGN(EditedArchive edited, edit(archive, bytes.bytes(), pickle::wrap_in_list));
  return rebuild(edited, bytes, "archive", detail);
}

}  // namespace

Result<ObjectRecord> object_record(const tensor::Catalog& source, const tensor::Object& object, bool wrap,
                                   Detail detail) {
  if (wrap && !object.wrapped_in_list) {
    auto out = wrapped(source, object, detail);
    if (!out) out.error().causes.push_back("while wrapping object " + object.key);
    return out;
  }
  ObjectRecord out;
  out.size = object.inline_bytes.empty() ? object.where.length : object.inline_bytes.size();
  if (object.inline_bytes.empty()) out.parts.push_back(Part::of(object.where));
  else out.parts.push_back(Part::of(std::string(as_text(object.inline_bytes))));
  return out;
}

Result<std::string> unwrapped_common(const tensor::Catalog& source) {
  CKPT_TRY_ASSIGN(ObjectBytes bytes, ObjectBytes::open(source, *source.common, {}));
  if (source.common->length > kMaxCommon)
    return fail(Code::kUnsupported, bytes.bytes().subject(), "the common state is larger than 64 MiB");
  CKPT_TRY_ASSIGN(zip::Archive archive, zip::read_archive(bytes.bytes()));
  CKPT_TRY_ASSIGN(EditedArchive edited, edit(archive, bytes.bytes(), pickle::unwrap_list));
  CKPT_TRY_ASSIGN(ObjectRecord record, rebuild(edited, bytes, "common", Detail::kContent));
  std::string out;
  out.reserve(record.size);
  for (const Part& part : record.parts) {
    if (part.range.length == 0) {
      out += part.text;
      continue;
    }
    const size_t start = out.size();
    out.resize(start + part.range.length);
    MutableByteSpan room(reinterpret_cast<std::byte*>(out.data()) + start, part.range.length);
    CKPT_TRY(bytes.bytes().read(part.range.offset - source.common->offset, room));
  }
  return out;
}

}  // namespace ckpt::torch_dist
