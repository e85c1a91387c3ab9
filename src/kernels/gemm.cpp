#include "kernels/gemm.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace lockstep::kernels {
namespace {

constexpr int kProposals = 128;
constexpr int kFirstRuns = 3;
constexpr float kHopeless = 1.2f;  // one that is this much slower than the best is not timed on
constexpr std::size_t kFinalists = 6;
constexpr int kFinalRuns = 15;
// What takes this many milliseconds is run for so many at a time: a device at its power limit
// lowers its clock within them, and the algorithm that needs least power is the fastest then.
constexpr float kLong = 0.1f;
constexpr float kHeatMs = 100.0f;
constexpr float kHotMs = 30.0f;
constexpr int kHotRounds = 3;

std::string describe(const Product& product) {
  std::ostringstream text;
  text << product.m << "x" << product.n << "x" << product.k << (product.transpose_a ? " t" : " n")
       << (product.transpose_b ? "t" : "n") << (product.out_is_float ? " f32" : " bf16")
       << (product.addend != nullptr ? " add" : "") << (product.factor != nullptr ? " factor" : "")
       << " epilogue " << static_cast<int>(product.epilogue);
  return text.str();
}

void check(cublasStatus_t status, const char* call, const Product& product) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(call) + " for the product " + describe(product) + ": " +
                           cublasLtGetStatusString(status));
}

// cublasLt reads columns after columns, which makes every row-major matrix its transpose: it
// computes out^T = b^T * a^T, and its first operand is our second.
class Plan {
 public:
  explicit Plan(const Product& product) {
    const cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    check(cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F), "MatmulDescCreate", product);
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, product);
    set_epilogue(product);
    const auto layout = [&](cublasLtMatrixLayout_t& result, cudaDataType_t type, std::int64_t rows,
                            std::int64_t columns) {
      check(cublasLtMatrixLayoutCreate(&result, type, static_cast<std::uint64_t>(rows),
                                       static_cast<std::uint64_t>(columns), rows),
            "MatrixLayoutCreate", product);
    };
    const cudaDataType_t out = product.out_is_float ? CUDA_R_32F : CUDA_R_16BF;
    if (product.transpose_b) {
      layout(first_, CUDA_R_16BF, product.k, product.n);
    } else {
      layout(first_, CUDA_R_16BF, product.n, product.k);
    }
    if (product.transpose_a) {
      layout(second_, CUDA_R_16BF, product.m, product.k);
    } else {
      layout(second_, CUDA_R_16BF, product.k, product.m);
    }
    layout(out_, out, product.n, product.m);
  }
  ~Plan() {
    if (out_ != nullptr) cublasLtMatrixLayoutDestroy(out_);
    if (second_ != nullptr) cublasLtMatrixLayoutDestroy(second_);
    if (first_ != nullptr) cublasLtMatrixLayoutDestroy(first_);
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  std::vector<cublasLtMatmulAlgo_t> proposals(cublasLtHandle_t handle, std::int64_t workspace,
                                              const Product& product) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "PreferenceCreate", product);
    const auto bytes = static_cast<std::size_t>(workspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof(bytes));
    std::array<cublasLtMatmulHeuristicResult_t, kProposals> results;
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_, first_, second_, out_, out_, preference,
                                       kProposals, results.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    check(status, "MatmulAlgoGetHeuristic", product);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    }
    return algorithms;
  }

  cublasStatus_t start(cublasLtHandle_t handle, const Product& product,
                       const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                       std::int64_t workspace_bytes, const float* one_and_zero, Stream stream) {
    if (product.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, product);
    }
    if (product.aux != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux, product);
    }
    const float host_one = 1.0f;
    const float host_beta = product.addend != nullptr ? 1.0f : 0.0f;
    const void* alpha = &host_one;
    const void* beta = &host_beta;
    if (product.factor != nullptr) {  // then both are read from the device
      alpha = product.factor;
      beta = one_and_zero + (product.addend != nullptr ? 0 : 1);
    }
    const void* addend = product.addend != nullptr ? product.addend : product.out;
    return cublasLtMatmul(handle, operation_, alpha, product.b, first_, product.a, second_, beta,
                          addend, out_, product.out, out_, &algorithm, workspace,
                          static_cast<std::size_t>(workspace_bytes), stream);
  }

  std::optional<cublasLtMatmulAlgo_t> algorithm;

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t name, const Value& value, const Product& product) {
    check(cublasLtMatmulDescSetAttribute(operation_, name, &value, sizeof(value)),
          "MatmulDescSetAttribute", product);
  }

  void set_epilogue(const Product& product) {
    if (product.factor != nullptr) {
      set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE, product);
    }
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    switch (product.epilogue) {
      case Epilogue::none:
        break;
      case Epilogue::bias:
        epilogue = CUBLASLT_EPILOGUE_BIAS;
        break;
      case Epilogue::bias_and_gelu:
        epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        break;
      case Epilogue::gelu_gradient:
        epilogue = CUBLASLT_EPILOGUE_DGELU;
        break;
    }
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue, product);
    if (product.aux != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n, product);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux, product);
    }
    if (product.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF, product);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, product);
    }
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr;
  cublasLtMatrixLayout_t second_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
};

// The fastest algorithms of earlier runs, one line each: device and library, product, bytes in hex.
// Of several lines for a product the first one counts, for all processes: then ranks, and a run
// that goes on later, compute with the same bits.
class AlgorithmFile {
 public:
  explicit AlgorithmFile(std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    int device = 0;
    cudaDeviceProp properties;
    cudaGetDevice(&device);
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return;
    prefix_ =
        std::string(properties.name) + ", cublasLt " + std::to_string(cublasLtGetVersion()) + "\t";
    read();
  }

  std::optional<cublasLtMatmulAlgo_t> find(const std::string& product) const {
    const auto found = known_.find(product);
    cublasLtMatmulAlgo_t algorithm;
    auto* bytes = reinterpret_cast<unsigned char*>(&algorithm);
    if (found == known_.end() || found->second.size() != 2 * sizeof(algorithm)) return std::nullopt;
    for (std::size_t i = 0; i < sizeof(algorithm); ++i) {
      const std::string digits = found->second.substr(2 * i, 2);
      char* end = nullptr;
      bytes[i] = static_cast<unsigned char>(std::strtoul(digits.c_str(), &end, 16));
      if (*end != 0) return std::nullopt;
    }
    return algorithm;
  }

  // Returns the one that counts. Whole lines are appended, so several processes may do so; where
  // the file cannot be written, nothing is lost but time.
  cublasLtMatmulAlgo_t add(const std::string& product, const cublasLtMatmulAlgo_t& algorithm) {
    if (prefix_.empty()) return algorithm;
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string line = prefix_ + product + "\t";
    const auto* bytes = reinterpret_cast<const unsigned char*>(&algorithm);
    for (std::size_t i = 0; i < sizeof(algorithm); ++i) {
      line += kDigits[bytes[i] >> 4];
      line += kDigits[bytes[i] & 15];
    }
    std::ofstream(path_, std::ios::app) << line + "\n";
    read();
    return find(product).value_or(algorithm);
  }

 private:
  void read() {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      if (line.rfind(prefix_, 0) != 0) continue;
      const std::size_t end = line.find('\t', prefix_.size());
      if (end == std::string::npos) continue;
      known_.emplace(line.substr(prefix_.size(), end - prefix_.size()), line.substr(end + 1));
    }
  }

  std::string path_;
  std::string prefix_;
  std::map<std::string, std::string> known_;
};

}  // namespace

struct Gemm::State {
  explicit State(const GemmOptions& given) : options(given), file(given.cache_file) {
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(reinterpret_cast<void**>(&one_and_zero), 2 * sizeof(float)) != cudaSuccess ||
        cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess) {
      throw std::runtime_error("cublasLt could not be started");
    }
    const float values[2] = {1.0f, 0.0f};
    cudaMemcpy(one_and_zero, values, sizeof(values), cudaMemcpyHostToDevice);
  }
  ~State() {
    plans.clear();
    cudaFree(one_and_zero);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
    for (const auto& [stream, workspace] : workspaces) cudaFree(workspace);
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  // Products of two streams run at the same time.
  void* workspace_of(Stream stream) {
    void*& workspace = workspaces[stream];
    if (workspace == nullptr &&
        cudaMalloc(&workspace, static_cast<std::size_t>(options.workspace_bytes)) != cudaSuccess) {
      throw std::runtime_error("cublasLt: no memory for a workspace");
    }
    return workspace;
  }

  cublasStatus_t start(Plan& plan, const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                       Stream stream) {
    return plan.start(handle, product, algorithm, workspace_of(stream), options.workspace_bytes,
                      one_and_zero, stream);
  }

  // Milliseconds of one of so many runs; infinite where the algorithm cannot be used.
  float time(Plan& plan, const Product& product, const cublasLtMatmulAlgo_t& algorithm,
             Stream stream, int runs = 1) {
    float took = INFINITY;
    cudaEventRecord(begin, stream);
    for (int i = 0; i < runs; ++i) {
      if (start(plan, product, algorithm, stream) != CUBLAS_STATUS_SUCCESS) return INFINITY;
    }
    cudaEventRecord(end, stream);
    if (cudaEventSynchronize(end) != cudaSuccess) return INFINITY;
    cudaEventElapsedTime(&took, begin, end);
    return took / static_cast<float>(runs);
  }

  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    float took = INFINITY;
  };

  // The quickest run of each, of a few.
  std::vector<Candidate> first_round(Plan& plan, const Product& product, Stream stream) {
    std::vector<Candidate> candidates;
    float best = INFINITY;
    for (const auto& algorithm : plan.proposals(handle, options.workspace_bytes, product)) {
      Candidate candidate{algorithm};
      time(plan, product, algorithm, stream);  // loads the kernel
      for (int i = 0; i < kFirstRuns; ++i) {
        candidate.took = std::min(candidate.took, time(plan, product, algorithm, stream));
        if (candidate.took > best * kHopeless) break;
      }
      best = std::min(best, candidate.took);
      if (std::isfinite(candidate.took)) candidates.push_back(candidate);
    }
    return candidates;
  }

  // A device that has much to do changes its clock from one moment to the next: the best of the
  // first round take turns, and the sum of their times decides.
  void final_round(Plan& plan, const Product& product, Stream stream,
                   std::vector<Candidate>& candidates) {
    const float least = candidates.front().took;
    const bool is_long = least > kLong;
    const int runs = is_long ? std::max(1, static_cast<int>(kHotMs / least)) : 1;
    if (is_long) {
      time(plan, product, candidates.front().algorithm, stream, static_cast<int>(kHeatMs / least));
    }
    for (Candidate& candidate : candidates) candidate.took = 0.0f;
    for (int i = 0; i < (is_long ? kHotRounds : kFinalRuns); ++i) {
      for (Candidate& candidate : candidates) {
        candidate.took += time(plan, product, candidate.algorithm, stream, runs);
      }
    }
  }

  cublasLtMatmulAlgo_t fastest(Plan& plan, const Product& product, Stream stream) {
    cudaDeviceSynchronize();  // what else runs would be measured, too
    std::vector<Candidate> candidates = first_round(plan, product, stream);
    if (candidates.empty()) {
      throw std::runtime_error("cublasLt has no way to compute the product " + describe(product));
    }
    std::ranges::stable_sort(candidates, {}, &Candidate::took);
    candidates.resize(std::min(candidates.size(), kFinalists));
    final_round(plan, product, stream, candidates);
    return std::ranges::min_element(candidates, {}, &Candidate::took)->algorithm;
  }

  GemmOptions options;
  AlgorithmFile file;
  cublasLtHandle_t handle = nullptr;
  std::map<Stream, void*> workspaces;
  float* one_and_zero = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  std::map<std::string, std::unique_ptr<Plan>> plans;
};

Gemm::Gemm(GemmOptions options) : state_(std::make_unique<State>(options)) {}
Gemm::~Gemm() = default;

void Gemm::run(const Product& product, Stream stream) {
  const std::string kind = describe(product);
  std::unique_ptr<Plan>& plan = state_->plans[kind];
  if (!plan) plan = std::make_unique<Plan>(product);
  if (!plan->algorithm) {
    plan->algorithm = state_->file.find(kind);
    if (!plan->algorithm) {
      plan->algorithm = state_->file.add(kind, state_->fastest(*plan, product, stream));
    }
  }
  check(state_->start(*plan, product, *plan->algorithm, stream), "cublasLtMatmul", product);
}

}  // namespace lockstep::kernels
