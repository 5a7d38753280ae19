#include "formats/torch_save/rewrite.h"

#include <algorithm>
#include <set>

#include "formats/pickle/emit.h"
#include "formats/torch_save/tensor_pickle.h"
#include "formats/writers.h"
#include "formats/zip/writer.h"
#include "lib/base/digest.h"

namespace ckpt::formats {

using pickle::Graph;
using pickle::Kind;
using pickle::kNoNode;
using pickle::NodeId;
using tensor::KeyPath;
using tensor::Target;

namespace {

constexpr uint64_t kMaxValues = 64 << 20;  ///< held in memory while they are written

/// Decides what becomes of each value; gives up where two ways to one node want different things.
class RewritePlan {
 public:
  RewritePlan(const TorchFile& file, const tensor::Selection& selection)
      : file_(file), graph_(file.graph), selection_(selection) {
    for (uint32_t i = 0; i < selection.tensors.size(); ++i)
      targets_.emplace(selection.tensor(selection.tensors[i]).key, i);
  }

  std::optional<Rewrite> run(const Walk& walk) {
    if (walk.objects_opened || file_.big_endian || has_views()) return std::nullopt;
    for (const Found& found : walk.tensors) {
      if (!decide(found)) return std::nullopt;
    }
    if (loses_parts(walk)) return std::nullopt;
    for (const Found& leaf : walk.leaves) {
      if (!decide_pair(leaf, selection_.common ? std::optional(leaf.key) : std::nullopt, leaf.key)) return std::nullopt;
    }
    for (const auto& [pair, key] : decided_) {
      if (key != kKept) out_.pairs.emplace(pair, key.empty() ? std::nullopt : std::optional(key.substr(1)));
    }
    return keys_are_unique() ? std::optional(std::move(out_)) : std::nullopt;
  }

 private:
  static inline const std::string kKept = "=";  ///< a pair's fate: "=" stays, "" is left out, ":KEY" gets another key

  bool has_views() const {
    for (NodeId id = 0; file_.legacy && id < graph_.node_count(); ++id) {
      if (graph_.kind(id) != Kind::kPersistent) continue;
      auto fields = graph_.tuple(graph_.args(id));
      if (fields.size() > 5 && !graph_.is_none(fields[5])) return true;
    }
    return false;
  }

  /// What is left out would take with it what is wanted: parts of a tensor have keys of their own.
  bool loses_parts(const Walk& walk) const {
    for (const Found& found : walk.tensors) {
      if (found.plain || targets_.count(found.key) == 0) continue;
      for (KeyPath path = found.path; path.size() > 1;) {
        path.pop_back();
        if (left_out_.count(tensor::join_path(path, true)) != 0) return true;
      }
    }
    return false;
  }

  bool decide(const Found& found) {
    auto at = targets_.find(found.key);
    if (at == targets_.end()) left_out_.insert(tensor::join_path(found.path, true));
    if (at == targets_.end()) return decide_pair(found, std::nullopt, found.key);
    const Target& target = selection_.tensors[at->second];
    if (!decide_pair(found, target.key, found.key)) return false;
    const bool unchanged = tensor::is_unchanged(selection_, target);
    if (!unchanged && !found.plain) return false;
    // One tensor under two keys, of which a rule fits one.
    auto [fate, fresh] = fates_.try_emplace(found.node, unchanged ? kSame : at->second);
    if (!fresh && (fate->second == kSame) != unchanged) return false;
    if (!fresh && !unchanged) {
      const Target& other = selection_.tensors[fate->second];
      if (other.dtype != target.dtype || other.shape != target.shape) return false;
    }
    if (!unchanged) out_.changed.emplace(found.node, at->second);
    return true;
  }

  /// `key`: the new one; nothing: left out.
  bool decide_pair(const Found& found, const std::optional<std::string>& key, const std::string& old) {
    std::string fate = kKept;
    if (!key || *key != old) {
      if (!found.plain || found.holder == kNoNode) return false;
      fate = key ? last_step(found.path, *key) : "";
      if (key && fate.empty()) return false;
    }
    if (found.holder == kNoNode) return fate == kKept;
    auto [at, fresh] = decided_.try_emplace({found.holder, found.item}, fate);
    return fresh || at->second == fate;
  }

  /// The key in its dict that makes the whole one; empty where that would lie in another dict.
  static std::string last_step(KeyPath path, const std::string& key) {
    path.pop_back();
    const std::string parent = path.empty() ? "" : tensor::join_path(path, false) + ".";
    return key.compare(0, parent.size(), parent) == 0 && key.size() > parent.size() ? ":" + key.substr(parent.size())
                                                                                    : "";
  }

  /// No dict gets a key twice: of a pickle's two the last would count.
  bool keys_are_unique() const {
    std::set<NodeId> renamed;
    for (const auto& [pair, key] : out_.pairs) {
      if (key) renamed.insert(pair.first);
    }
    for (NodeId holder : renamed) {
      std::set<std::string_view> seen;
      auto items = graph_.items(holder);
      for (size_t i = 0; i + 1 < items.size(); i += 2) {
        auto change = out_.pairs.find({holder, i / 2});
        if (change != out_.pairs.end() && !change->second) continue;
        const std::string_view key =
            change != out_.pairs.end() ? *change->second : graph_.as_str(items[i]).value_or("");
        if (!key.empty() && !seen.insert(key).second) return false;
      }
    }
    return true;
  }

  static constexpr uint32_t kSame = UINT32_MAX;
  const TorchFile& file_;
  const Graph& graph_;
  const tensor::Selection& selection_;
  std::unordered_map<std::string_view, uint32_t> targets_;
  std::map<Rewrite::Pair, std::string> decided_;
  std::set<std::string> left_out_;
  std::unordered_map<NodeId, uint32_t> fates_;
  Rewrite out_;
};

/// The common state of a source, or a torch.save file, opened.
struct OpenFile {
  UniqueFd fd;
  tensor::FileRange where;
  std::string name;
  TorchFile file;
  NodeId root = 0;
  zip::ByteSource bytes() const { return zip::ByteSource(fd.get(), where.offset, where.length, name); }

  static Result<OpenFile> open(const tensor::Catalog& catalog) {
    OpenFile out;
    out.where = *catalog.common;
    out.name = catalog.files[out.where.file].path;
    CKPT_TRY_ASSIGN(out.fd, catalog.open_file(out.where.file));
    CKPT_TRY_ASSIGN(out.file, read_torch_file(out.bytes()));
    out.root = out.file.graph.root();
    if (!catalog.common_wrapped_in_list) return out;
    auto items = out.file.graph.items(out.root);
    if (out.file.graph.kind(out.root) != Kind::kList || items.size() != 1)
      return fail(Code::kCorrupt, out.name, "is not a list of one element");
    out.root = items[0];
    return out;
  }
};

/// As torch.load does with a storage of another byte order; an untyped one has elements of a byte.
void swap_elements(std::string& bytes, uint64_t size) {
  for (size_t at = 0; size > 1 && at + size <= bytes.size(); at += size) {
    std::reverse(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.begin() + static_cast<ptrdiff_t>(at + size));
  }
}

/// Small torch.save files in memory, of values of one pickle.
class ValueWriter {
 public:
  ValueWriter(const OpenFile& source, pickle::Changes* changes)
      : source_(source), emitter_(out_, source.file.graph, [this](NodeId id) { return storage(id); }, changes) {}

  void none() { out_.none(); }
  Result<std::string> write(NodeId node) {
    out_ = pickle::Writer();
    emitter_.start_anew();
    storages_.clear();
    names_.clear();
    CKPT_TRY(emitter_.emit(node));
    out_.stop();
    const std::string pickle = out_.take();
    zip::Layout layout;
    std::string text;
    std::vector<uint32_t> crcs;
    auto add = [&](const std::string& name, std::string_view content) {
      const size_t index = layout.count();
      layout.add("archive/" + name, content.size());
      crcs.push_back(crc32(0, as_bytes(content)));
      text += layout.header(index, crcs.back());
      text += content;
    };
    add("data.pkl", pickle);
    add("byteorder", "little");
    for (size_t i = 0; i < storages_.size(); ++i) add("data/" + std::to_string(i), storages_[i]);
    add("version", "3\n");
    return text + layout.directory(crcs);
  }

 private:
  Result<void> storage(NodeId id) {
    const Graph& graph = source_.file.graph;
    auto fields = graph.tuple(graph.args(id));
    CKPT_TRY_ASSIGN(const pickle::TorchStorage storage, pickle::read_torch_storage(graph, id));
    auto found = source_.file.storages.find(std::string(storage.key));
    if (found == source_.file.storages.end() || found->second.second != storage.bytes) {
      return fail(Code::kCorrupt, "", "its storage " + std::string(storage.key) + " is missing or of another size");
    }
    if (fields.size() > 5 && !graph.is_none(fields[5]))
      return fail(Code::kUnsupported, "", "holds a view of a legacy storage");
    const pickle::GlobalName* type = graph.global(fields[1]);
    auto [name, fresh] = names_.try_emplace(std::string(storage.key), storages_.size());
    if (fresh) {
      if (storage.bytes > kMaxValues) return fail(Code::kUnsupported, "", "holds more than 64 MiB of tensors");
      std::string bytes(storage.bytes, '\0');
      CKPT_TRY(source_.bytes().read(found->second.first, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
      if (source_.file.big_endian) swap_elements(bytes, storage.item / (type->name.find("Complex") == 0 ? 2 : 1));
      storages_.push_back(std::move(bytes));
    }
    write_storage_id(out_, std::string(type->module), std::string(type->name), std::to_string(name->second),
                     storage.bytes / storage.item, std::string(graph.as_str(fields[3]).value_or("cpu")));
    return {};
  }

  const OpenFile& source_;
  pickle::Writer out_;
  pickle::Emitter emitter_;
  std::vector<std::string> storages_;
  std::map<std::string, size_t> names_;
};

/// Which nodes are nothing but tensors: they go, with the dicts and lists around them.
class WithoutTensors : public pickle::Changes {
 public:
  WithoutTensors(const Graph& graph, NodeId root)
      : graph_(graph), root_(root), holds_(find_holders(graph).tensors), state_(graph.node_count(), kUnseen) {}
  bool leaves_out(NodeId holder, size_t item) const override { return gone(graph_.items(holder)[2 * item + 1], 0); }
  const std::string* new_key(NodeId, size_t) const override { return nullptr; }
  Result<bool> replace(NodeId node) override {
    if (node == root_ || !gone(node, 0)) return false;
    none();
    return true;
  }
  std::function<void()> none;  ///< writes None

 private:
  enum State : uint8_t { kUnseen, kOpen, kGone, kStays };
  static constexpr size_t kMaxDepth = 500;

  bool gone(NodeId id, size_t depth) const {
    if (!holds_[id]) return false;
    if (state_[id] != kUnseen) return state_[id] == kGone;
    state_[id] = kOpen;
    bool out = true;
    const auto items = graph_.items(id);
    const Kind kind = graph_.kind(id);
    // Of an object without its tensors nothing can be made: it goes as a whole.
    if (const auto pairs = is_dict(graph_, id) ? dict_pairs(graph_, id) : std::nullopt) {
      for (const DictPair& pair : *pairs) out = out && depth < kMaxDepth && gone(pair.value, depth + 1);
    } else if (kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kSet) {
      for (NodeId item : items) out = out && depth < kMaxDepth && gone(item, depth + 1);
    }
    state_[id] = out ? kGone : kStays;
    return out;
  }

  const Graph& graph_;
  const NodeId root_;
  const std::vector<bool> holds_;
  mutable std::vector<State> state_;
};

}  // namespace

std::optional<Rewrite> plan_rewrite(const TorchFile& file, const Walk& walk, const tensor::Selection& selection) {
  return RewritePlan(file, selection).run(walk);
}

Result<std::vector<StoredValue>> stored_values(const tensor::Catalog& catalog) {
  CKPT_TRY_ASSIGN(const OpenFile source, OpenFile::open(catalog));
  CKPT_TRY_ASSIGN(Walk walk, walk_state(source.file.graph, source.root));
  // Tensors in Megatron's common state are values of it: the checkpoint's own are elsewhere.
  if (catalog.format != "torch_save") walk.leaves.insert(walk.leaves.end(), walk.tensors.begin(), walk.tensors.end());
  std::vector<StoredValue> out;
  std::vector<std::string> bad;
  for (const tensor::Unreadable& entry : walk.unsupported) {
    if (catalog.format != "torch_save") bad.push_back(entry.text());  // of a torch_save file the catalog has them
  }
  ValueWriter writer(source, nullptr);
  uint64_t bytes = 0;
  for (Found& found : walk.leaves) {
    auto file = writer.write(found.node);
    if (!file && file.error().code != Code::kUnsupported && !answers_no(file.error().code))
      return std::move(file).error();
    if (!file) {
      bad.push_back(found.key + ": " + file.error().text());
      continue;
    }
    bytes += file->size();
    if (bytes > kMaxValues)
      return fail(Code::kUnsupported, source.name, "holds more than 64 MiB of values that are no tensors");
    out.push_back({std::move(found.key), std::move(found.path), std::move(*file)});
  }
  if (bad.empty()) return out;
  return with_causes(Error(Code::kUnsupported, source.name, "holds values that cannot be written again")
                         .with_hint("leave them out with --tensors-only"),
                     std::move(bad));
}

Result<std::string> file_without_tensors(const tensor::Catalog& catalog) {
  CKPT_TRY_ASSIGN(const OpenFile source, OpenFile::open(catalog));
  const Graph& graph = source.file.graph;
  if (!is_dict(graph, source.root)) {
    CKPT_TRY_ASSIGN(const Walk walk, walk_state(graph, source.root));
    if (walk.leaves.empty()) return std::string();
    return Error(Code::kUnsupported, source.name, "holds values in no dict, which Megatron's common state is")
        .with_hint("leave them out with --tensors-only");
  }
  WithoutTensors changes(graph, source.root);
  ValueWriter writer(source, &changes);
  changes.none = [&writer] { writer.none(); };
  auto out = writer.write(source.root);
  if (!out && out.error().subject.empty()) out.error().subject = source.name;
  return out;
}

}  // namespace ckpt::formats
