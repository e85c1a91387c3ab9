#pragma once

#include "lockstep/lockstep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What another language's binding of libtorch offers, as far as the test needs it. */
lockstep_tensor* binding_parameter(float value);
/* weight * input + bias; without the bias if it is NULL. */
lockstep_tensor* binding_linear(lockstep_tensor* weight, lockstep_tensor* bias, float input);
int binding_backward(lockstep_tensor* output); /* 0, or 1 and binding_error() */
const char* binding_error(void);
float binding_value(lockstep_tensor* tensor);
float binding_gradient(lockstep_tensor* tensor);
void binding_free(lockstep_tensor* tensor);

#ifdef __cplusplus
}
#endif
