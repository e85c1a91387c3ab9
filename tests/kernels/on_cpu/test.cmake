# Hopper's kernels compiled for the CPU (launch.h): CUDA's headers are needed, a GPU is not. Sanitizers do not
# follow threads that take turns on stacks of their own.
lockstep_test(kernels_on_cpu_test LABELS unit
              SOURCES kernels/tile_attention_on_cpu_test.cpp kernels/tile_products_on_cpu_test.cpp
              kernels/on_cpu/layouts_test.cpp
              kernels/on_cpu/mistakes_test.cpp kernels/on_cpu/barriers.cpp kernels/on_cpu/block.cpp
              kernels/on_cpu/copies.cpp kernels/on_cpu/deadlock.cpp kernels/on_cpu/fiber.cpp
              kernels/on_cpu/group.cpp kernels/on_cpu/machine.cpp kernels/on_cpu/meeting.cpp
              kernels/on_cpu/products.cpp kernels/on_cpu/warps.cpp)
# Its kernels/approximate.cuh, hopper.cuh and wgmma.cuh come before those of src.
target_include_directories(kernels_on_cpu_test BEFORE PRIVATE
                           "${CMAKE_CURRENT_SOURCE_DIR}/kernels/on_cpu")
target_include_directories(kernels_on_cpu_test SYSTEM PRIVATE
                           ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
# Kernels look at a value's bits through references, which nvcc allows, and products take their time.
target_compile_options(kernels_on_cpu_test PRIVATE -O1 -fno-strict-aliasing -Wno-unknown-pragmas)
