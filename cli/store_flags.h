// Stores of chunks: which one, and its key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/repository/repository.h"
#include "lib/schedule/retention.h"

namespace ckpt::cli {

struct StoreFlags {
  std::string place;  ///< empty: none was given
  std::filesystem::path key_file;
};

/// --store and --store-key. `required`: the verb does nothing without a store.
void add_store_flags(VerbOptions& app, StoreFlags& flags, bool required);
/// `create`: one that is not there is made.
Result<std::unique_ptr<repository::Repository>> open_store(Context& context, const StoreFlags& flags, bool create);

/// An argument that a verb can do without with --store alone.
Error argument_required(const std::string& verb, const std::string& argument);

Result<void> list_store(Context& context, const StoreFlags& flags);

struct StoreRemoval {
  std::vector<std::string> names;  ///< with rules: patterns, those among which is chosen
  schedule::RetentionRules rules;
  bool dry_run = false;
};
Result<void> remove_from_store(Context& context, const StoreFlags& flags, const StoreRemoval& removal);

struct StoreVerification {
  std::vector<std::string> names;
  double percent = 100;
  uint64_t seed = 0;
  bool repair = false;
};
Result<void> verify_store(Context& context, const StoreFlags& flags, const StoreVerification& verification);

}  // namespace ckpt::cli
