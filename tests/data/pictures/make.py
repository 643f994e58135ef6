"""Small pictures by another encoder, and what that project's decoder makes of the lossy ones.

Usage: python make.py        (needs Pillow; writes beside itself)

The picture is smooth, so that lossy formats keep it: column x, row y of 48 x 40 has red 5x, green 6y, blue 255 - 2x - 3y.
NAME.png beside NAME.jpg or NAME.webp holds the RGB pixels to expect.
"""

from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
W, H = 48, 40
picture = Image.new("RGB", (W, H))
picture.putdata([(5 * x, 6 * y, 255 - 2 * x - 3 * y) for y in range(H) for x in range(W)])


def lossy(name, image, **options):
    image.save(HERE / name, **options)
    Image.open(HERE / name).convert("RGB").save(HERE / f"{Path(name).stem}.png", optimize=True)


lossy("baseline.jpg", picture, quality=90, subsampling=0)
lossy("halved.jpg", picture, quality=90, subsampling=2)
lossy("progressive.jpg", picture, quality=90, subsampling=0, progressive=True)
lossy("grey.jpg", picture.convert("L"), quality=90)
lossy("cmyk.jpg", picture.convert("CMYK"), quality=90)
lossy("lossy.webp", picture, quality=80)

# Four bits a pixel, of which one colour cannot be seen.
few = Image.new("P", (W, H))
few.putpalette([v for i in range(16) for v in (16 * i, 255 - 16 * i, (40 * i) % 256)])
few.putdata([(x // 3 + y // 5) % 16 for y in range(H) for x in range(W)])
few.save(HERE / "palette.png", bits=4, transparency=5)
few.save(HERE / "palette.bmp")
frames = [few, few.transpose(Image.Transpose.ROTATE_180)]
frames[0].save(HERE / "animated.gif", save_all=True, append_images=frames[1:], duration=100, loop=0)
frames = [picture, picture.transpose(Image.Transpose.ROTATE_180)]
frames[0].save(HERE / "animated.webp", save_all=True, append_images=frames[1:], duration=100, lossless=True)
