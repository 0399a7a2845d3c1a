"""Installs cfn_jax: `pip install -e .`, with extras for accelerators, tests and the demo."""

import pathlib

from setuptools import find_packages, setup

# Every range holds the versions that the tests ran with; the next ones are untried.
SCIKIT_IMAGE = 'scikit-image>=0.25,<0.27'
PYARROW = 'pyarrow>=26,<27'
BOKEH = 'bokeh>=3.8,<3.10'
GCS = 'google-cloud-storage>=3.12,<4'
S3 = 'boto3>=1.42.1,<2'
PHOTOGRAPHS = [SCIKIT_IMAGE, 'scikit-learn>=1.6,<1.10']

setup(
  name='cfn_jax',
  version='0.1.0',
  description='The context-free network, trained by solving jigsaw puzzles, in JAX.',
  long_description=pathlib.Path('README.md').read_text(encoding='utf8'),
  long_description_content_type='text/markdown',
  python_requires='>=3.11',
  # The folder configs/ lies inside the package where it is installed.
  packages=[
    *find_packages(include=['cfn_jax', 'cfn_jax.*']),
    'cfn_jax.configs',
    'cfn_jax.configs.studies',
  ],
  package_dir={'cfn_jax.configs': 'configs', 'cfn_jax.configs.studies': 'configs/studies'},
  package_data={'cfn_jax.report': ['templates/*']},
  install_requires=[
    'absl-py>=2.1,<3',
    'array_record>=0.8,<0.9',
    'flax>=0.12,<0.13',
    'grain>=0.2.18,<0.3',
    'jax>=0.10,<0.11',
    'jinja2>=3.1,<4',
    'markupsafe>=3,<4',
    'matplotlib>=3.10,<3.12',
    'ml-collections>=1.1,<2',
    'numpy>=2.2,<2.5',
    'opencv-python-headless>=4.13,<5',
    'optax>=0.2.8,<0.3',
    'orbax-checkpoint>=0.12,<0.13',
    'pillow>=12,<14',
    'protobuf>=5.28.3,<8',
    'rich>=14,<16',
    'safetensors>=0.8,<0.9',
    'scipy>=1.15,<1.18',
    'simplejpeg>=1.8,<2',
    'tensorboardX>=2.6.4,<3',
    'tensorflow-datasets>=4.9.9,<5',
    'tqdm>=4.66,<5',
  ],
  extras_require={
    'cuda12': ['jax[cuda12]>=0.10,<0.11'],
    'cuda13': ['jax[cuda13]>=0.10,<0.11'],
    'tpu': ['jax[tpu]>=0.10,<0.11'],
    # Compilers for accelerators that are not here (`benchmark compile`), without their libraries.
    'compile': [
      'jax[cuda12-local,tpu]>=0.10,<0.11',
      'nvidia-cuda-nvcc-cu12>=12.6.85,<13',
    ],
    'torch': ['torch>=2.13,<2.14'],
    'svm': ['scikit-learn>=1.6,<1.10'],
    'demo': PHOTOGRAPHS,
    'parquet': [PYARROW],
    'proposals': [SCIKIT_IMAGE],
    'report': [BOKEH],
    # Workdirs, weights and records in buckets: gs:// and s3://.
    'gcs': [GCS],
    's3': [S3],
    # What `tfds build imagenet2012` imports; reading what it wrote needs none of them.
    'tfds-build': [
      'apache-beam>=2.77,<3',
      'importlib_resources>=6,<8',
      'mlcroissant>=1.1,<2',
      'tensorflow>=2.21,<2.22',
    ],
    'test': [
      *PHOTOGRAPHS,
      BOKEH,
      'codespell>=2.4,<3',
      GCS,
      S3,
      'flask>=3.1,<4',  # of moto's server
      'flask-cors>=6,<7',
      'gcp-storage-emulator>=2026.7,<2027',
      'hypothesis>=6.100,<7',
      'mean-average-precision>=2024.1,<2025',
      'moto[s3]>=5.2,<6',
      'mypy>=2.3,<3',
      PYARROW,
      'pytest>=9,<10',
      'pytest-xdist>=3.6,<4',
      'ruff>=0.17,<0.18',
    ],
  },
)
