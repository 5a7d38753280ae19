#include "formats/common_state.h"

#include "formats/torch_save/archive.h"

namespace ckpt::formats {

namespace {

constexpr uint64_t kMaxForContentMetadata = 64 << 20;

struct CommonState {
  TorchFile file;
  pickle::NodeId root = 0;
};

Result<CommonState> read_common(const tensor::Catalog& catalog) {
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog.open_file(catalog.common->file));
  zip::ByteSource source(fd.get(), catalog.common->offset, catalog.common->length,
                         catalog.files[catalog.common->file].path);
  CommonState out;
  CKPT_TRY_ASSIGN(out.file, read_torch_file(source));
  out.root = out.file.graph.root();
  if (!catalog.common_wrapped_in_list) return out;
  auto items = out.file.graph.items(out.root);
  if (out.file.graph.kind(out.root) != pickle::Kind::kList || items.size() != 1) {
    return fail(Code::kCorrupt, source.subject(), "the common state is not a list of one element");
  }
  out.root = items[0];
  return out;
}

}  // namespace

Result<std::string> common_state_json(const tensor::Catalog& catalog, const pickle::RenderOptions& options) {
  if (!catalog.common) return fail(Code::kNotFound, catalog.root.string(), "has no common state");
  CKPT_TRY_ASSIGN(CommonState common, read_common(catalog));
  return pickle::to_json(common.file.graph, common.root, options);
}

std::string content_metadata_json(const tensor::Catalog& catalog) {
  if (!catalog.common || catalog.common->length > kMaxForContentMetadata) return "";
  auto common = read_common(catalog);
  if (!common) return "";
  const pickle::NodeId content = common->file.graph.get(common->root, "content_metadata");
  if (content == pickle::kNoNode) return "";
  pickle::RenderOptions options;
  options.indent = false;
  options.max_nodes = 1000;
  return pickle::to_json(common->file.graph, content, options);
}

}  // namespace ckpt::formats
