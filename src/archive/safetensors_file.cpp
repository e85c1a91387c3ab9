#include "archive/safetensors_file.h"

#include "archive/durable_output.h"
#include "archive/safetensors.h"

namespace lockstep {

void write_safetensors_file(const std::string& path, std::span<const TensorView> tensors,
                            const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos(tensors.begin(), tensors.end());
  const SafetensorsLayout layout = lay_out_safetensors(infos, metadata);
  replace_durably(path, layout.file_bytes(), [&](DurableOutput& output) {
    output.append(std::as_bytes(std::span(layout.header)));
    for (const std::size_t index : layout.order) output.append(tensors[index].bytes);
  });
}

}  // namespace lockstep
