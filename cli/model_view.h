// What inspect, load-metadata and verify share when their path is a model checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/verb_options.h"
#include "formats/format.h"

namespace ckpt::cli {

/// Opens the metadata only: data files may be missing or unreadable, and what is damaged is in Catalog::damage. `from`:
/// a format's name, or auto.
Result<tensor::Catalog> open_metadata(const std::filesystem::path& path, const std::string& from = "auto");
/// With the places of all data. Damage of one tensor does not keep the others from being read: tensor::check_readable.
Result<tensor::Catalog> open_data(const std::filesystem::path& path, const std::string& from = "auto");

/// --from and --max-memory, the same for every verb that has them.
void add_from(VerbOptions& app, std::string& from);
void add_max_memory(VerbOptions& app, uint64_t& bytes);

/// Lines for people and for JSON.
std::vector<std::string> texts_of(const std::vector<tensor::Unreadable>& entries);
std::vector<std::string> texts_of(const std::vector<tensor::Finding>& findings);

/// "3x12x8"; "scalar" for no axes.
std::string shape_text(const tensor::Shape& shape);
/// No glob at all matches every key.
bool matches_any(const std::vector<std::string>& globs, std::string_view key);

}  // namespace ckpt::cli
