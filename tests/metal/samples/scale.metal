// grid (n, 1, 1): y[i] = x[i] * factor[0] + N, in dtype T.
const uint i = thread_position_in_grid.x;
y[i] = T(float(x[i]) * factor[0] + float(N));
