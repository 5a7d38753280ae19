#include "lib/repository/repository.h"

#include <fcntl.h>

#include <algorithm>
#include <map>

#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"

namespace ckpt::repository {

namespace {

constexpr size_t kLeastKey = 16, kMostKey = 4096;
constexpr unsigned kReaders = 8;
constexpr size_t kTailGuess = 256 << 10;

Result<std::vector<std::byte>> read_key(const std::filesystem::path& file) {
  if (file.empty()) return std::vector<std::byte>();
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(file, kMostKey));
  if (text.size() < kLeastKey)
    return fail(Code::kUsage, file.string(), "is no key: it has fewer than 16 bytes, which could be guessed");
  const ByteSpan bytes = as_bytes(text);
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

std::string key_check(const std::vector<std::byte>& key, const std::string& id) {
  return key.empty() ? "" : to_hex(IdBuilder(key, "ckpt store: key check").of(as_bytes(id)));
}

}  // namespace

Result<std::unique_ptr<Repository>> Repository::open(const OpenOptions& options, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(std::unique_ptr<Backend> backend, open_backend(options.place, options.create, &cancel));
  return open(std::move(backend), options, cancel);
}

Result<std::unique_ptr<Repository>> Repository::open(std::unique_ptr<Backend> backend, const OpenOptions& options,
                                                     const Cancel& cancel) {
  CKPT_TRY_ASSIGN(const std::vector<std::byte> key, read_key(options.key_file));
  std::unique_ptr<Repository> out(new Repository(std::move(backend), cancel));
  out->ids_ = IdBuilder(key, "ckpt store: chunks");
  out->seal_ = IdBuilder(key, "ckpt store: names");
  CKPT_TRY(out->read_config(options, key));
  return out;
}

Result<void> Repository::read_config(const OpenOptions& options, const std::vector<std::byte>& key) {
  auto text = read_object(*backend_, "", kConfig, kMaxDocument);
  if (!text && text.error().code == Code::kNotFound && options.create) {
    CKPT_TRY(write_config(key));
    text = read_object(*backend_, "", kConfig, kMaxDocument);
  }
  if (!text && text.error().code == Code::kNotFound)
    return Error(Code::kNotFound, options.place, "is no store").with_hint("ckpt push makes one");
  if (!text) return std::move(text).error();
  CKPT_TRY_ASSIGN(const Config config, parse_config(*text, backend_->subject(kConfig)));
  if (config.key_check == key_check(key, config.id)) return {};
  if (key.empty())
    return Error(Code::kPermission, options.place, "is a store with a key").with_hint("--store-key names its file");
  return fail(Code::kPermission, options.place,
              config.key_check.empty() ? "is a store without a key: who gave one expects another store"
                                       : "is a store with another key");
}

Result<void> Repository::write_config(const std::vector<std::byte>& key) {
  Config config;
  CKPT_TRY_ASSIGN(config.id, random_id());
  config.key_check = key_check(key, config.id);
  Result<void> put = backend_->put(kConfig, as_bytes(to_json(config)), true);
  if (!put && put.error().code == Code::kMismatch) return {};  // somebody else was faster
  return put;
}

Result<PackTable> read_pack_table(Backend& backend, const StoredObject& pack) {
  const std::string name = in_folder(kPacks, pack.name), subject = backend.subject(name);
  if (pack.size < kPackHeader + kPackTrailer || pack.size > kMaxPack)
    return fail(Code::kCorrupt, subject, "has no size that a pack can have");
  std::vector<std::byte> tail(std::min<uint64_t>(kTailGuess, pack.size));
  CKPT_TRY(backend.read(name, pack.size, pack.size - tail.size(), tail));
  CKPT_TRY_ASSIGN(const Trailer trailer, parse_trailer(ByteSpan(tail).last(kPackTrailer), pack.size, subject));
  if (trailer.table + kPackTrailer > tail.size()) {
    tail.resize(trailer.table + kPackTrailer);
    CKPT_TRY(backend.read(name, pack.size, pack.size - tail.size(), tail));
  }
  const ByteSpan table = ByteSpan(tail).last(trailer.table + kPackTrailer).first(trailer.table);
  CKPT_TRY(check_trailer(trailer, table, subject));
  return parse_table(table, pack.size, subject);
}

Result<void> Repository::take_index_objects(std::vector<IndexedPack>& out) {
  CKPT_TRY_ASSIGN(const std::vector<StoredObject> objects, backend_->list(kIndex));
  std::vector<Result<std::vector<IndexedPack>>> read(objects.size(), std::vector<IndexedPack>());
  std::optional<WorkerPool> pool;
  make_helpers(kReaders, pool);
  CKPT_TRY(side_by_side(pool ? &*pool : nullptr, objects.size(), [&](size_t i) -> Result<void> {
    CKPT_TRY(cancel_.check());
    auto text = read_object(*backend_, kIndex, objects[i], kMaxIndex);
    if (!text)
      read[i] = std::move(text).error();
    else
      read[i] = parse_index(as_bytes(*text), backend_->subject(in_folder(kIndex, objects[i].name)));
    // It went while this was looking: another has what it had.
    if (!read[i] && read[i].error().code == Code::kNotFound) read[i] = std::vector<IndexedPack>();
    if (!read[i] && read[i].error().code != Code::kCorrupt) return read[i].error();
    return {};
  }));
  for (size_t i = 0; i < objects.size(); ++i) {
    if (!read[i]) faults_.push_back(read[i].error().text());
    index_objects_.push_back(objects[i].name);
    for (IndexedPack& pack : read[i] ? *read[i] : std::vector<IndexedPack>()) out.push_back(std::move(pack));
  }
  return {};
}

Result<void> Repository::load() {
  index_ = {};
  faults_.clear(), index_objects_.clear(), unreadable_packs_.clear();
  std::vector<IndexedPack> indexed;
  CKPT_TRY(take_index_objects(indexed));
  // After the index: what is in it and not here was taken away since.
  CKPT_TRY_ASSIGN(const std::vector<StoredObject> listed, backend_->list(kPacks));
  std::map<std::string, uint64_t> there;
  for (const StoredObject& object : listed) {
    if (is_pack_name(object.name)) there.emplace(object.name, object.size);
  }
  for (IndexedPack& pack : indexed) {
    const auto found = there.find(pack.name);
    if (found == there.end()) continue;
    if (found->second != pack.size) {
      faults_.push_back(backend_->subject(in_folder(kPacks, pack.name)) + ": has another size than the index says");
      continue;
    }
    there.erase(found);
    KnownPack known;
    known.name = std::move(pack.name), known.size = pack.size, known.table = std::move(pack.table);
    known.indexed = true;
    index_.add(std::move(known));
  }
  std::vector<StoredObject> rest;
  for (const auto& [name, size] : there) rest.push_back({name, size});
  std::vector<Result<PackTable>> tables(rest.size(), PackTable());
  std::optional<WorkerPool> pool;
  make_helpers(kReaders, pool);
  CKPT_TRY(side_by_side(pool ? &*pool : nullptr, rest.size(), [&](size_t i) -> Result<void> {
    CKPT_TRY(cancel_.check());
    tables[i] = read_pack_table(*backend_, rest[i]);
    const bool passed =
        tables[i] || tables[i].error().code == Code::kCorrupt || tables[i].error().code == Code::kNotFound;
    return passed ? Result<void>() : Result<void>(tables[i].error());
  }));
  for (size_t i = 0; i < rest.size(); ++i) {
    if (!tables[i]) {
      if (tables[i].error().code == Code::kCorrupt)
        faults_.push_back(tables[i].error().text()), unreadable_packs_.push_back(rest[i].name);
      continue;
    }
    KnownPack known;
    known.name = rest[i].name, known.size = rest[i].size, known.table = std::move(*tables[i]);
    index_.add(std::move(known));
  }
  return {};
}

void Repository::honour(const std::vector<Condemned>& condemned) {
  for (const Condemned& one : condemned) {
    for (const std::string& name : one.packs) {
      if (const auto number = index_.find_pack(name)) index_.pack(*number).condemned = true;
    }
  }
}

Result<std::vector<Ref>> Repository::refs(std::vector<Error>* damaged) {
  CKPT_TRY_ASSIGN(const std::vector<StoredObject> objects, backend_->list(kImages));
  std::vector<Ref> out;
  for (const StoredObject& object : objects) {
    CKPT_TRY(cancel_.check());
    const std::string subject = backend_->subject(in_folder(kImages, object.name));
    auto text = read_object(*backend_, kImages, object, kMaxDocument);
    if (!text && text.error().code == Code::kNotFound) continue;  // removed meanwhile
    auto ref = text ? parse_ref(*text, object.name, seal_, subject) : Result<Ref>(text.error());
    // One that was replaced after it was listed has another size.
    if (!ref && ref.error().code == Code::kCorrupt && check_name(object.name)) ref = this->ref(object.name);
    if (!ref && ref.error().code == Code::kNotFound) continue;
    if (ref)
      out.push_back(std::move(*ref));
    else if (damaged == nullptr || ref.error().code == Code::kIo || ref.error().code == Code::kInterrupted)
      return std::move(ref).error();
    else
      damaged->push_back(std::move(ref).error());
  }
  return out;
}

Result<Ref> Repository::ref(const std::string& name) {
  CKPT_TRY(check_name(name));
  auto text = read_object(*backend_, kImages, name, kMaxDocument);
  if (!text && text.error().code == Code::kNotFound)
    return Error(Code::kNotFound, name, "is not in the store " + backend_->subject())
        .with_hint("ckpt list --store says what is");
  if (!text) return std::move(text).error();
  return parse_ref(*text, name, seal_, backend_->subject(in_folder(kImages, name)));
}

Result<std::vector<Repository::Named>> Repository::condemned() {
  CKPT_TRY_ASSIGN(const std::vector<StoredObject> objects, backend_->list(kCondemned));
  std::vector<Named> out;
  for (const StoredObject& object : objects) {
    auto text = read_object(*backend_, kCondemned, object, kMaxDocument);
    if (!text && text.error().code == Code::kNotFound) continue;
    if (!text) return std::move(text).error();
    CKPT_TRY_ASSIGN(Condemned one, parse_condemned(*text, backend_->subject(in_folder(kCondemned, object.name))));
    out.push_back({object.name, std::move(one)});
  }
  return out;
}

Result<void> Repository::check_trusted() const {
  const auto who = backend_->strangers();
  if (seal_.keyed() || !who) return {};
  return Error(Code::kPermission, backend_->subject(), *who + ": who may write there may have an image say anything")
      .with_hint("--trust takes it all the same, as restore would (ckpt-security(7)); a store with a key needs none");
}

}  // namespace ckpt::repository
