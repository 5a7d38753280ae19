#include "formats/common_state.h"

#include "formats/torch_save/archive.h"

namespace ckpt::formats {

Result<std::string> common_state_json(const tensor::Catalog& catalog, const pickle::RenderOptions& options) {
  if (!catalog.common) return fail(Code::kNotFound, catalog.root.string(), "has no common state");
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog.open_file(catalog.common->file));
  zip::ByteSource source(fd.get(), catalog.common->offset, catalog.common->length, catalog.files[catalog.common->file].path);
  CKPT_TRY_ASSIGN(TorchFile archive, read_torch_file(source));
  pickle::NodeId root = archive.graph.root();
  if (catalog.common_wrapped_in_list) {
    auto items = archive.graph.items(root);
    if (archive.graph.kind(root) != pickle::Kind::kList || items.size() != 1) {
      return fail(Code::kAnswerNo, source.subject(), "the common state is not a list of one element");
    }
    root = items[0];
  }
  return pickle::to_json(archive.graph, root, options);
}

}  // namespace ckpt::formats
