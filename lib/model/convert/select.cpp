#include "lib/model/convert/select.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "formats/torch_dist/reformulated.h"
#include "formats/writers.h"
#include "lib/base/text.h"
#include "lib/tensor/elements.h"

namespace ckpt::model {

namespace {

using tensor::Shape;
using tensor::Target;

/// Where optimizers keep their state: Megatron (also of chained optimizers), torch's distributed checkpoints,
/// Lightning.
constexpr const char* kOptimizerKeys[] = {"optimizer.**",           "optimizer/**",        "optim.**",  "optimizers.**",
                                          "chained_*.optimizer.**", "optimizer_states.**", "optimizer", "optim"};

bool any_matches(const std::vector<std::string>& globs, std::string_view key) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_match(glob, key); });
}

/// New names for keys.
class Names {
 public:
  Result<void> read(const SelectRequest& request) {
    if (!request.map.empty()) CKPT_TRY(read_map(request.map));
    for (const std::string& text : request.renames) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0)
        return fail(Code::kUsage, text, "is no rename: REGEX=REPLACEMENT is wanted");
      RE2::Options options;
      options.set_log_errors(false);
      auto regex = std::make_unique<RE2>(text.substr(0, equals), options);
      const std::string to = text.substr(equals + 1);
      std::string error;
      if (!regex->ok()) return fail(Code::kUsage, text, "cannot be read: " + regex->error());
      if (!regex->CheckRewriteString(to, &error)) return fail(Code::kUsage, text, "cannot be read: " + error);
      renames_.push_back({text, std::move(regex), to, false});
    }
    return {};
  }

  std::string rename(const std::string& key) {
    std::string out = key;
    if (auto found = map_.find(key); found != map_.end()) {
      out = found->second.to;
      found->second.used = true;
    }
    for (Rename& rename : renames_) {
      if (RE2::GlobalReplace(&out, *rename.regex, rename.to) > 0) rename.used = true;
    }
    return out;
  }

  /// A rule that fits nothing is a mistake that nobody would notice.
  Result<void> check_used() const {
    std::vector<std::string> unused;
    for (const auto& [from, entry] : map_) {
      if (!entry.used) unused.push_back("map: " + from);
    }
    std::sort(unused.begin(), unused.end());
    for (const Rename& rename : renames_) {
      if (!rename.used) unused.push_back("rename: " + rename.text);
    }
    if (unused.empty()) return {};
    return formats::with_causes(Error(Code::kUsage, "", "names that no key of the source has"), std::move(unused));
  }

 private:
  struct Rename {
    std::string text;
    std::unique_ptr<RE2> regex;
    std::string to;
    bool used;
  };
  struct Entry {
    std::string to;
    bool used = false;
  };

  Result<void> read_map(const std::string& text) {
    constexpr int kDepth = 4;
    int depth = 0;
    auto shallow = [&](int level, nlohmann::json::parse_event_t, nlohmann::json&) {
      return (depth = std::max(depth, level)) <= kDepth;
    };
    const auto doc = nlohmann::json::parse(text, shallow, false);
    if (!doc.is_object()) return fail(Code::kUsage, "the map", "is no JSON object of old key to new key");
    for (const auto& [from, to] : doc.items()) {
      if (!to.is_string()) return fail(Code::kUsage, from, "is not given a name in the map");
      map_[from].to = to.get<std::string>();
    }
    return {};
  }

  std::unordered_map<std::string, Entry> map_;
  std::vector<Rename> renames_;
};

struct ShapeRule {
  std::string glob;
  std::vector<std::optional<uint64_t>> lengths;  ///< nothing: stays
};

Result<ShapeRule> parse_shape_rule(const std::string& text) {
  auto bad = [&] { return fail(Code::kUsage, text, "is no shape: GLOB=AxB is wanted, _ for a length that stays"); };
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) return bad();
  ShapeRule out{text.substr(0, equals), {}};
  for (std::string_view rest = std::string_view(text).substr(equals + 1);;) {
    const std::string_view word = rest.substr(0, rest.find('x'));
    uint64_t length = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), length);
    if (word == "_") out.lengths.push_back(std::nullopt);
    else if (error == std::errc() && end == word.data() + word.size()) out.lengths.push_back(length);
    else return bad();
    if (word.size() == rest.size()) return out;
    rest.remove_prefix(word.size() + 1);
  }
}

/// A glob that fits nothing is a mistake that nobody would notice.
Result<void> check_globs(const tensor::Catalog& catalog, const SelectRequest& request,
                         const std::vector<ShapeRule>& shapes) {
  auto fits = [&](const std::string& glob) {
    auto match = [&](const auto& entry) { return glob_match(glob, entry.key); };
    return std::any_of(catalog.tensors.begin(), catalog.tensors.end(), match) ||
           std::any_of(catalog.objects.begin(), catalog.objects.end(), match) ||
           std::any_of(catalog.unsupported.begin(), catalog.unsupported.end(), match);
  };
  std::vector<std::string> unused;
  auto check = [&](const char* what, const std::string& glob) {
    if (glob != "**" && !fits(glob)) unused.push_back(std::string(what) + ": " + glob);
  };
  for (const std::string& glob : request.include) check("include", glob);
  for (const std::string& glob : request.exclude) check("exclude", glob);
  for (const auto& rule : request.dtypes) check("dtype", rule.first);
  for (const ShapeRule& rule : shapes) check("shape", rule.glob);
  if (unused.empty()) return {};
  return formats::with_causes(Error(Code::kUsage, catalog.root.string(), "has no key that these fit"),
                              std::move(unused));
}

/// What cannot be read is left out only where somebody has said so.
Result<void> check_unreadable(const tensor::Catalog& catalog, const SelectRequest& request, Selected& out) {
  std::vector<std::string> lost;
  for (const tensor::Unreadable& entry : catalog.unsupported) {
    if ((entry.is_object && request.tensors_only) || !is_wanted(request, entry.key)) continue;
    if (request.skip_unreadable) {
      out.skipped.push_back(entry);
      out.selection.notes.push_back(entry.text() + ": left out");
    } else {
      lost.push_back(entry.text());
    }
  }
  if (lost.empty()) return {};
  return formats::with_causes(Error(Code::kUnsupported, catalog.root.string(), "holds what cannot be read")
                         .with_hint("leave it out with --exclude KEY, or all of it with --skip-unreadable"),
                     std::move(lost));
}

Result<void> apply_shape(const std::vector<ShapeRule>& rules, const SelectRequest& request, const std::string& key,
                         Target& target, std::vector<std::string>& notes) {
  for (const ShapeRule& rule : rules) {
    if (!glob_match(rule.glob, key)) continue;
    if (rule.lengths.size() != target.shape.size()) {
      return fail(Code::kUsage, key,
                  fmt::format("has {} axes, its new shape {}", target.shape.size(), rule.lengths.size()));
    }
    const Shape before = target.shape;
    for (size_t axis = 0; axis < before.size(); ++axis) target.shape[axis] = rule.lengths[axis].value_or(before[axis]);
    if (target.shape == before) return {};
    if (!request.allow_shape_mismatch) {
      return Error(Code::kUsage, key,
                   fmt::format("has the shape {}, not {}", fmt::join(before, "x"), fmt::join(target.shape, "x")))
          .with_hint("give --allow-shape-mismatch: what is new is filled with zeros, what is too much is cut off");
    }
    if (!tensor::element_count(target.shape)) return fail(Code::kUsage, key, "would have too many elements");
    notes.push_back(fmt::format("{}: {} became {}: what is new is zero, what was too much is cut off", key,
                                fmt::join(before, "x"), fmt::join(target.shape, "x")));
    return {};
  }
  return {};
}

Result<void> apply_dtype(const SelectRequest& request, const std::string& key, Target& target) {
  for (const auto& [glob, dtype] : request.dtypes) {
    if (!glob_match(glob, key)) continue;
    auto possible = tensor::check_conversion(target.dtype, dtype);
    if (!possible) {
      possible.error().subject = key + ": " + possible.error().subject;
      return possible;
    }
    target.dtype = dtype;
    return {};
  }
  return {};
}

/// Flattened optimizer tensors get their shapes back as they are read, where these are known. Those that are left are
/// told by their keys: Megatron's bucket space, whose buffers belong to one parallel layout; rows whose original shape
/// is lost.
Result<void> check_unflattened(const tensor::Selection& selection) {
  std::unordered_map<std::string_view, const tensor::Tensor*> by_key;
  for (const tensor::Tensor& tensor : selection.source->tensors) by_key.emplace(tensor.key, &tensor);
  std::vector<std::string> flat;
  for (const Target& target : selection.tensors) {
    const tensor::Tensor& tensor = selection.tensor(target);
    const auto model_key = formats::model_key_of(tensor.key);
    const auto model = model_key ? by_key.find(*model_key) : by_key.end();
    if (tensor.key.find(".gbuf_idx_") != std::string::npos) {
      flat.push_back(tensor.key +
                     ": is a buffer of one parallel layout, and nothing says which parameters lie where in it");
    } else if (model != by_key.end() && model->second->shape != tensor.shape) {
      flat.push_back(fmt::format("{}: has the shape {}, its parameter {}", tensor.key, fmt::join(tensor.shape, "x"),
                                 fmt::join(model->second->shape, "x")));
    }
  }
  if (flat.empty()) return {};
  return formats::with_causes(Error(Code::kUnsupported, selection.source->root.string(),
                                    "holds optimizer tensors whose original shapes are not known")
                                  .with_hint("leave them out with --no-optimizer"),
                              std::move(flat));
}

template <class T>
void sort_by_key(std::vector<T>& of) {
  std::stable_sort(of.begin(), of.end(), [](const T& a, const T& b) { return a.key < b.key; });
}

Result<void> check_collisions(const tensor::Selection& selection) {
  std::unordered_map<std::string_view, std::string_view> seen;
  std::vector<std::string> bad;
  auto check = [&](const std::string& key, const std::string& from) {
    auto [at, fresh] = seen.emplace(key, from);
    if (!fresh) bad.push_back(fmt::format("{} and {} would both be {}", at->second, from, key));
  };
  for (const Target& target : selection.tensors) check(target.key, selection.tensor(target).key);
  for (const auto& object : selection.objects) check(object.key, selection.object(object).key);
  if (bad.empty()) return {};
  return formats::with_causes(Error(Code::kUsage, selection.source->root.string(), "two keys cannot have one name"),
                              std::move(bad));
}

}  // namespace

bool is_wanted(const SelectRequest& request, const std::string& key) {
  if (!request.include.empty() && !any_matches(request.include, key)) return false;
  if (any_matches(request.exclude, key)) return false;
  return !request.no_optimizer || std::none_of(std::begin(kOptimizerKeys), std::end(kOptimizerKeys),
                                               [&](const char* glob) { return glob_match(glob, key); });
}

Result<std::pair<std::string, tensor::DType>> parse_dtype_rule(const std::string& text) {
  const size_t equals = text.rfind('=');
  const std::string name = equals == std::string::npos ? text : text.substr(equals + 1);
  const auto dtype = tensor::dtype_from_name(name);
  if (!dtype) return fail(Code::kUsage, text, "names no type that ckpt knows: GLOB=bfloat16 is wanted");
  return std::pair(equals == std::string::npos ? std::string("**") : text.substr(0, equals), *dtype);
}

Result<Selected> select(const tensor::Catalog& catalog, const SelectRequest& request) {
  Selected out;
  tensor::Selection& selection = out.selection;
  selection.source = &catalog;
  selection.common = !request.tensors_only;
  Names names;
  CKPT_TRY(names.read(request));
  std::vector<ShapeRule> shapes;
  for (const std::string& text : request.shapes) {
    CKPT_TRY_ASSIGN(ShapeRule rule, parse_shape_rule(text));
    shapes.push_back(std::move(rule));
  }
  CKPT_TRY(check_globs(catalog, request, shapes));
  CKPT_TRY(check_unreadable(catalog, request, out));
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const tensor::Tensor& tensor = catalog.tensors[i];
    if (!is_wanted(request, tensor.key)) continue;
    Target target{i, names.rename(tensor.key), tensor.dtype, tensor.shape};
    CKPT_TRY(apply_dtype(request, tensor.key, target));
    CKPT_TRY(apply_shape(shapes, request, tensor.key, target, selection.notes));
    selection.tensors.push_back(std::move(target));
  }
  for (uint32_t i = 0; i < catalog.objects.size() && !request.tensors_only; ++i) {
    const std::string& key = catalog.objects[i].key;
    if (is_wanted(request, key)) selection.objects.push_back({i, names.rename(key)});
  }
  CKPT_TRY(names.check_used());
  if (selection.tensors.empty() && !catalog.tensors.empty())
    return fail(Code::kUsage, catalog.root.string(), "has no tensor left to be written");
  out.excluded = catalog.tensors.size() + catalog.objects.size() + catalog.unsupported.size() -
                 selection.tensors.size() - selection.objects.size();
  sort_by_key(selection.tensors);
  sort_by_key(selection.objects);
  CKPT_TRY(check_collisions(selection));
  if (request.unflatten) CKPT_TRY(check_unflattened(selection));
  return out;
}

}  // namespace ckpt::model
