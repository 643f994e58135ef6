
LFM3_NULLABILITY_END

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LFM3_H */
