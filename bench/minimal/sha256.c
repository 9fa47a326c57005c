/*
 * What one core needs to hash 512 MiB with SHA-256: the block digests of a hole of 1 TiB, which the
 * blkhash construction must hash one after the other. 8 KiB an update.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    static unsigned char buf[8192], out[32];
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL);
    memset(buf, 0x5a, sizeof(buf));
    for (int i = 0; ok && i < (512 << 20) / (int)sizeof(buf); i++) {
        ok = EVP_DigestUpdate(ctx, buf, sizeof(buf));
    }
    ok = ok && EVP_DigestFinal_ex(ctx, out, NULL);
    printf("%02x%02x\n", out[0], out[1]);
    return !ok;
}
