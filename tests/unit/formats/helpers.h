// What the tests of the readers share: the SHA-256 of a tensor as the manifests give it.
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "formats/format.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/tensor/read.h"
#include "tests/support/fixtures.h"

namespace ckpt::test {

inline nlohmann::json read_json(const std::filesystem::path& path) {
  auto text = io::read_file(path, 64 << 20);
  REQUIRE_MESSAGE(text, (text ? "" : text.error().text()));
  return nlohmann::json::parse(*text);
}

/// SHA-256 of the whole tensor, row-major, read in small blocks; an error's text where it cannot be read.
inline std::string tensor_sha256(const tensor::Catalog& catalog, const tensor::Tensor& t, uint64_t block = 100) {
  tensor::FileCache files(catalog);
  tensor::RegionReader reader(catalog, files);
  tensor::RowMajorBlocks blocks(t, block);
  Sha256 sha;
  std::vector<std::byte> buffer;
  while (auto region = blocks.next()) {
    buffer.resize(*tensor::element_count(region->shape) * tensor::item_size(t.dtype));
    if (auto done = reader.read(t, *region, buffer); !done) return done.error().text();
    sha.update(buffer);
  }
  return sha.finish_hex();
}

inline const tensor::Tensor* find(const tensor::Catalog& catalog, const std::string& key) {
  for (const tensor::Tensor& t : catalog.tensors) {
    if (t.key == key) return &t;
  }
  return nullptr;
}

inline tensor::Catalog open_ok(const std::filesystem::path& path, const formats::ReadOptions& options = {}) {
  auto catalog = formats::open_checkpoint(path, options);
  REQUIRE_MESSAGE(catalog, (catalog ? "" : catalog.error().text()));
  return std::move(*catalog);
}

/// The code and text of a failure; "opened" where there is none.
inline std::string open_error(const std::filesystem::path& path, Code code, const formats::ReadOptions& options = {}) {
  auto catalog = formats::open_checkpoint(path, options);
  if (catalog) return "opened";
  CHECK_MESSAGE(catalog.error().code == code, catalog.error().text());
  std::string out = catalog.error().text();
  for (const std::string& cause : catalog.error().causes) out += "\n" + cause;
  return out;
}

}  // namespace ckpt::test
